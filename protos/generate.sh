#!/bin/sh
# Compiles protos/*.proto into the stubs that lie beside them.
# Usage: protos/generate.sh [PYTHON] [OUTPUT_ROOT]
# OUTPUT_ROOT gets blockyard/protos/*; by default the repository, where that is a link to protos/.
set -eu
cd "$(dirname "$0")/.."
python="${1:-python}"
output="${2:-.}"
exec "$python" -m grpc_tools.protoc -Iblockyard/protos=protos \
    --python_out="$output" --pyi_out="$output" --grpc_python_out="$output" \
    blockyard/protos/generation.proto blockyard/protos/cluster.proto \
    blockyard/protos/chaos.proto
