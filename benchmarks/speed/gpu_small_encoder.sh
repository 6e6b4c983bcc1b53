#!/usr/bin/env bash
# What a fast GPU needs from loading, in under four minutes: small encoders from files to shards, the loader
# against torch's DataLoader, and where a loading worker's time goes.
#
#     bash benchmarks/speed/gpu_small_encoder.sh [FOLDER FOR THE NUMBERS]
#
# Needs torch, torchvision, timm, imagecodecs and Pillow; PYTHON names the interpreter (default: python3).
set -u
cd "$(dirname "$0")/../.."
out=${1:-.}
python=${PYTHON:-python3}
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
cores=$(nproc)
echo "== $cores cores"
timeout 100 "$python" benchmarks/speed/extract.py --cases ViT-S/16@224 --json "$out/vit-s.json"
timeout 70 "$python" benchmarks/speed/loader.py --profile --files "JPEG 224" --workers "$cores" --images 16384 --batch 512 \
  --network vit_small_patch16_224 --json "$out/loader-network.json"
timeout 50 "$python" benchmarks/speed/loader.py --workers "$cores" --images 6144 --rounds 2 --json "$out/loader.json"
# Two cores for the CPU case, the rest for the GPU case beside it: neither is short of loading.
timeout 110 taskset -c 0,1 "$python" benchmarks/speed/extract.py --cpu --threads 2 --cases resnet50 --scale 0.5 \
  --json "$out/resnet50-cpu.json" > "$out/resnet50-cpu.txt" 2>&1 &
timeout 110 taskset -c "2-$((cores - 1))" "$python" benchmarks/speed/extract.py --cases resnet50@224 --scale 0.5 \
  --json "$out/resnet50.json"
wait
cat "$out/resnet50-cpu.txt"
echo "== $SECONDS s"
