# Blockyard on NVIDIA GPUs: docker build -t blockyard:0.1.0 .

FROM nvidia/cuda:13.0.1-runtime-ubuntu24.04 AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# Ubuntu keeps no old versions, so a pinned one would soon be gone.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN python3 -m venv /opt/blockyard \
    && /opt/blockyard/bin/python -m pip install -c constraints.txt '.[gpu,trace]'
# The CPU build of torch would load, and leave the GPUs alone.
RUN /opt/blockyard/bin/python -c "import torch; assert torch.version.cuda, 'this torch is a CPU build'"

FROM nvidia/cuda:13.0.1-runtime-ubuntu24.04
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* \
    # Ubuntu's image has a user of that number already.
    && userdel --remove ubuntu \
    && useradd --uid 1000 --create-home blockyard \
    # KubeRay starts Ray from a login shell, which sets its own PATH.
    && echo "export PATH=/opt/blockyard/bin:\$PATH" > /etc/profile.d/blockyard.sh
COPY --from=build /opt/blockyard /opt/blockyard
ENV PATH=/opt/blockyard/bin:$PATH PYTHONUNBUFFERED=1 RAY_USAGE_STATS_ENABLED=0
USER 1000:1000
WORKDIR /home/blockyard
EXPOSE 50051
CMD ["blockyard", "serve", "--host", "0.0.0.0", "--device", "cuda"]
