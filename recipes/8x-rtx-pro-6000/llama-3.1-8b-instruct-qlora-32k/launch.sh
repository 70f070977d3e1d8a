#!/usr/bin/env bash
# DDP on kentino-8x-rtx-pro-6000: 8 processes on 1 node(s).
#
#   ./launch.sh                        train
#   ./launch.sh --resume               go on from the newest checkpoint
#   ./launch.sh --resume=CHECKPOINT    go on from that folder
#   ./launch.sh --prepare              download and tokenize only, without a GPU
#
# Anything after -- goes to the trainer. Variables that you set yourself win over those set here.
# shellcheck disable=SC2016  # names and paths stand in single quotes: they are words, not code
set -euo pipefail

usage() { sed -n '2,/^# shellcheck/{/^# shellcheck/d;/^#/s/^# \{0,1\}//p;}' "./${BASH_SOURCE[0]##*/}"; }
fail() {
  printf 'launch.sh: %s\n' "$*" >&2
  exit 2
}

here=${BASH_SOURCE[0]%/*}
[[ $here == "${BASH_SOURCE[0]}" ]] && here=.
CDPATH='' cd -- "$here"

resume=''
prepare_only=''
while (($#)); do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --resume) resume=--auto_resume_from_checkpoints=True ;;
    --resume=?*) resume=--resume_from_checkpoint=${1#--resume=} ;;
    --prepare) prepare_only=1 ;;
    --) shift && break ;;
    *) fail "unknown option: $1 (see ./launch.sh --help)" ;;
  esac
  shift
done

# Set a variable unless the caller has; export it either way.
default() { export "$1=${!1-$2}"; }

# no telemetry
default HF_HUB_DISABLE_TELEMETRY 1
# no telemetry
default DO_NOT_TRACK 1
# Axolotl sends the configuration out otherwise, and hangs at exit offline
default AXOLOTL_DO_NOT_TRACK 1
# tokenizer threads and forked data loaders deadlock
default TOKENIZERS_PARALLELISM false
# less fragmentation of GPU memory
default PYTORCH_ALLOC_CONF expandable_segments:True
# a broken link says so instead of hanging until the watchdog; INFO on a first run also names the
# path it chose
default NCCL_DEBUG WARN
# CPU threads per process; unset means 1
default OMP_NUM_THREADS 8
# above two GPUs NCCL stops at PXB and copies through host memory (22-30 against 38-41 GB/s); if
# training hangs at 100% utilisation turn ACS and IOMMU translation off, or set PHB
default NCCL_P2P_LEVEL SYS
# try NCCL_MIN_CTAS=8 on two EPYC Turin sockets, where NCCL may pick too few channels; measured with
# nccl-tests only

for tool in accelerate python; do
  command -v "$tool" >/dev/null || fail "$tool is not on PATH; activate the environment made from requirements.txt"
done
[[ -e .recipegen-commit ]] && fail 'an interrupted recipegen left this folder half written; run recipegen again first'

# --- Download and tokenize once per node, in one process, before the GPUs start.
mkdir -p ./prepared
exec 9>./prepared/.lock
if command -v flock >/dev/null; then flock 9; fi # nodes may share this folder

model=meta-llama/Llama-3.1-8B-Instruct
if [[ ! -d $model && ${HF_HUB_OFFLINE:-0} != 1 ]]; then
  command -v hf >/dev/null || fail 'hf is not on PATH; it comes with huggingface_hub'
  hf download "$model" \
    --exclude 'original/*' --exclude '*.pth' --exclude '*.gguf' >/dev/null ||
    fail "cannot download $model; if it is gated, accept its licence on its page and run: hf auth login"
fi

# Tokenized again when the recipe or a data file has changed.
stamp=$(
  cksum axolotl.yaml
)
if [[ ! -f ./prepared/.stamp || $(<./prepared/.stamp) != "$stamp" ]]; then
  CUDA_VISIBLE_DEVICES='' python -m axolotl.cli.preprocess axolotl.yaml --download=False
  printf '%s\n' "$stamp" >./prepared/.stamp
fi
exec 9>&-
[[ -n $prepare_only ]] && exit 0

# --- Train. Everything is on this machine now; the ranks need not ask the Hub.
default HF_HUB_OFFLINE 1

checkpoints=(./outputs/checkpoint-*/)
if [[ -z $resume && -d ${checkpoints[0]} ]]; then
  fail "./outputs holds checkpoints of an earlier run: use --resume, or move that folder away"
fi
if [[ $resume == --auto_resume_from_checkpoints=True && ! -d ${checkpoints[0]} && ${NODE_RANK:-0} == 0 ]]; then
  fail "there is no checkpoint in ./outputs to resume from"
fi

arguments=(-m axolotl.cli.train axolotl.yaml)
[[ -n $resume ]] && arguments+=("$resume")

exec accelerate launch --config_file accelerate.yaml \
  --machine_rank "${NODE_RANK:-0}" \
  --main_process_ip "${MASTER_ADDR:-127.0.0.1}" \
  --main_process_port "${MASTER_PORT:-29500}" \
  "${arguments[@]}" "$@"
