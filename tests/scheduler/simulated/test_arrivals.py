from blockyard.scheduler.simulated.arrivals import Arrival, PromptWriter


def test_tokens_are_equal_where_prefix_ids_are() -> None:
    writer = PromptWriter()
    one = writer.prompt(Arrival(0, 0.0, 1100, 1, (7, 10**12, 9)))
    two = writer.prompt(Arrival(1, 0.0, 1300, 1, (7, 10**12, 8)))
    assert len(one) == 1100 and len(two) == 1300
    assert one[:1024] == two[:1024]
    assert len(set(one)) == 1100
    assert not set(one[1024:]) & set(two)


def test_what_no_id_stands_for_is_nobody_elses() -> None:
    writer = PromptWriter()
    prompts = [
        writer.prompt(Arrival(0, 0.0, 600, 1, (3,))),
        writer.prompt(Arrival(1, 0.0, 600, 1, (3,))),
        writer.prompt(Arrival(2, 0.0, 600, 1)),
    ]
    assert prompts[0][:512] == prompts[1][:512]
    assert len({prompt[599] for prompt in prompts}) == 3
    assert writer.answer(0) != writer.answer(1)
    assert writer.answer(0) in prompts[0][512:]
