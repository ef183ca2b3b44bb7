"""KV blocks that go with a request from one group to another: who carries them, and when."""
