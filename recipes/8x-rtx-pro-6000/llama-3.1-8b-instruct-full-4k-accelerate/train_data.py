"""Data files in, batches of tokens out.

Targets. Target i is the token that should follow token i, or -100 where that token is not trained: prompts, padding,
and the step from one packed document to the next.

Padding. Sequences are padded on the right and attention is causal, so no trained token ever sees padding: no attention
mask is made. Padding is left out of the loss by its target, never by its token id, which may be the end-of-turn token.
Packed documents are told apart by position ids that start again at 0.

Data order. The run is one stream of shuffled epochs, a pure function of the seed. Optimizer step s takes the next
`global_batch_size` sequences, so a checkpoint needs no state of the loader and may be resumed on other GPU counts.
"""

from __future__ import annotations

import bisect
import csv
import gzip
import hashlib
import json
import multiprocessing
import tempfile
from pathlib import Path

import numpy as np
import torch

from train_recipe import Problem

IGNORE = -100  # a target that is not trained
STAND_INS = ("a turn", "its place")  # for the words of one turn; they begin and end differently


# ---------------------------------------------------------------------------------------------- rows to tokens


def read_rows(dataset):
    """The rows of one file (JSON, JSON lines, CSV, Parquet), or of a data set on the Hub."""
    path = Path(dataset.path)
    open_text = gzip.open if path.suffix == ".gz" else open
    ending = Path(path.stem if path.suffix == ".gz" else path.name).suffix.lower()
    if not path.is_file():
        from datasets import load_dataset

        yield from load_dataset(dataset.path, split=dataset.split)
    elif ending == ".parquet":
        from pyarrow.parquet import ParquetFile

        for batch in ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    elif ending == ".csv":
        with open_text(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield from csv.DictReader(file)
    elif ending == ".json" and first_character(path, open_text) == "[":
        with open_text(path, "rt", encoding="utf-8-sig") as file:
            yield from json.load(file)
    else:
        with open_text(path, "rt", encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                try:
                    if line.strip():
                        yield json.loads(line)
                except ValueError as error:
                    raise Problem(f"{path}:{number}: not JSON: {error}") from None


def first_character(path, open_text):
    with open_text(path, "rt", encoding="utf-8-sig") as file:
        return file.read(64).lstrip()[:1]


def equal_characters(first, second):
    """How many characters two texts have in common at their start (by halving: conversations are long)."""
    equal, unknown = 0, min(len(first), len(second))
    while equal < unknown:
        middle = (equal + unknown + 1) // 2
        if first[equal:middle] == second[equal:middle]:
            equal = middle
        else:
            unknown = middle - 1
    return equal


def chat_segments(row, fields, tokenizer, eot_tokens):
    """(text, trained) pieces of a conversation: the assistant's turns with the token that ends them are trained.

    A turn is found by writing the whole conversation again, twice, with other words in its place: what is equal before
    and after is not the turn. This holds for templates that trim, rewrite or drop parts of earlier turns.
    """
    messages, turns = [], row[fields["messages"]]
    for message in json.loads(turns) if isinstance(turns, str) else turns:
        role = message[fields["role"]]
        known = {k: v for k, v in message.items() if k not in (fields["role"], fields["content"]) and v is not None}
        content = message.get(fields["content"])
        content = "" if content is None else content
        messages.append({**known, "role": fields["roles"].get(role, role), "content": content})
    full = tokenizer.apply_chat_template(messages, tokenize=False)
    stand_ins = [{"role": "assistant", "content": text} for text in STAND_INS]
    pieces, end = [], 0
    for index, message in enumerate(messages):
        if message["role"] != "assistant" or not message.get(fields.get("training"), True):
            continue
        others = [[*messages[:index], words, *messages[index + 1 :]] for words in stand_ins]
        others = [tokenizer.apply_chat_template(other, tokenize=False) for other in others]
        start = min(equal_characters(full, other) for other in others)
        stop = len(full) - min(equal_characters(full[start:][::-1], other[start:][::-1]) for other in others)
        rest = full[stop:]
        for token in sorted(eot_tokens, key=len, reverse=True):
            if rest.lstrip().startswith(token):
                stop += len(rest) - len(rest.lstrip()) + len(token)
                break
        pieces += [(full[end:start], False), (full[start:stop], True)]
        end = stop
    return [*pieces, (full[end:], False)]


def segments(row, dataset, tokenizer, eot_tokens):
    """A row as (text, trained) pieces, with the markers that begin and end a text."""
    fields = dataset.fields
    if dataset.kind == "chat":
        return chat_segments(row, fields, tokenizer, eot_tokens)
    if dataset.kind == "segments":
        return [(piece["text"], piece["label"]) for piece in row[fields["segments"]]]
    adds_bos = tokenizer.bos_token_id is not None and tokenizer("").input_ids[:1] == [tokenizer.bos_token_id]
    bos = tokenizer.bos_token if adds_bos else ""
    if dataset.kind == "completion":
        return [(bos, False), (row[fields["text"]] + tokenizer.eos_token, True)]
    given = row.get(fields.get("input")) or ""
    system = row.get(fields.get("system")) or ""
    prompt = dataset.prompts[("system_" if system else "") + ("with_input" if given else "without_input")]
    prompt = prompt.format(instruction=row[fields["instruction"]], input=given, system=system)
    return [(bos + prompt, False), (row[fields["output"]] + tokenizer.eos_token, True)]


def encode(pieces, tokenizer, apart):
    """Token ids and targets. Target i is the token after token i, or IGNORE where that one is not trained.

    Pieces are tokenised `apart`, so that no token spans a prompt and its answer; a conversation is one text, as it will
    be when the model is used, and a token belongs to the piece in which it starts.
    """
    ids, trained = [], []
    for group in [[piece] for piece in pieces] if apart else [pieces]:
        encoded = tokenizer("".join(text for text, _ in group), add_special_tokens=False, return_offsets_mapping=True)
        ends = np.cumsum([len(text) for text, _ in group])
        owners = np.searchsorted(ends, [start for start, _ in encoded.offset_mapping], side="right")
        ids += encoded.input_ids
        trained += [group[owner][1] for owner in owners]
    ids = np.array(ids, dtype=np.int32)
    return ids, np.append(np.where(trained, ids, IGNORE)[1:], IGNORE).astype(np.int32)


_worker = {}  # the tokenizer and data settings of a tokenising process


def _start_worker(tokenizer, data):
    _worker.update(tokenizer=tokenizer, data=data)


def encode_row(job):
    """The documents of one row (a long text makes several) and how many tokens were cut off or dropped."""
    number, row, dataset = job
    tokenizer, data = _worker["tokenizer"], _worker["data"]
    try:
        pieces = segments(row, dataset, tokenizer, data.eot_tokens)
        ids, targets = encode(pieces, tokenizer, apart=dataset.kind != "chat")
    except (KeyError, TypeError, AttributeError) as error:
        raise Problem(f"{dataset.path}: row {number} does not look like {dataset.kind}: {error!r}") from None
    excess = max(len(ids) - data.sequence_len, 0)
    if excess and dataset.kind == "completion":
        cuts = range(0, len(ids), data.sequence_len)
        return [(ids[c : c + data.sequence_len], targets[c : c + data.sequence_len]) for c in cuts], 0
    if excess and data.excess_length_strategy == "drop":
        return [], len(ids)
    ids, targets = ids[: data.sequence_len], targets[: data.sequence_len]
    if not (targets != IGNORE).any():
        return [], len(ids)
    return [(ids, targets)], excess


def load_tokenizer(recipe):
    """The model's tokenizer; its own chat template comes before the one in train.json."""
    from transformers import AutoTokenizer

    model = recipe.model
    tokenizer = AutoTokenizer.from_pretrained(
        model.name, revision=model.revision, trust_remote_code=model.trust_remote_code
    )
    tokenizer.chat_template = tokenizer.chat_template or recipe.data.chat_template
    if tokenizer.chat_template is None and any(dataset.kind == "chat" for dataset in recipe.data.datasets):
        raise Problem(f"{model.name} has no chat template; give one as data.chat_template in train.json")
    return tokenizer


def prepare(recipe, tokenizer):
    """Tokenise into PREPARED/KEY (once; kept for the next start) and return that folder."""
    parts = [repr(recipe.data), recipe.model.name, str(recipe.model.revision), str(tokenizer.chat_template)]
    for dataset in recipe.data.datasets:
        if Path(dataset.path).is_file():
            stat = Path(dataset.path).stat()
            parts.append(f"{stat.st_size} {stat.st_mtime_ns}")
    parts.append(Path(__file__).read_text(encoding="utf-8"))
    folder = Path(recipe.data.prepared) / hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    if folder.is_dir():
        return folder
    jobs = ((n, row, d) for d in recipe.data.datasets for n, row in enumerate(read_rows(d), 1))
    if recipe.data.processes > 1:
        spawn = multiprocessing.get_context("spawn")  # the parent may have started CUDA and threads
        with spawn.Pool(recipe.data.processes, _start_worker, (tokenizer, recipe.data)) as pool:
            results = list(pool.imap(encode_row, jobs, chunksize=64))
    else:
        _start_worker(tokenizer, recipe.data)
        results = [encode_row(job) for job in jobs]
    documents = [document for found, _ in results for document in found]
    if not documents:
        raise Problem(f"none of the {len(results)} rows can be trained at sequence_len {recipe.data.sequence_len}")
    counts = {
        "rows": len(results),
        "rows_dropped": sum(not found for found, _ in results),
        "documents": len(documents),
        "tokens": sum(len(ids) for ids, _ in documents),
        "trained_tokens": sum(int((targets != IGNORE).sum()) for _, targets in documents),
        "tokens_lost": sum(lost for _, lost in results),
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent))
    np.save(temporary / "tokens.npy", np.concatenate([ids for ids, _ in documents]))
    np.save(temporary / "targets.npy", np.concatenate([targets for _, targets in documents]))
    np.save(temporary / "bounds.npy", np.cumsum([0] + [len(ids) for ids, _ in documents]))
    (temporary / "counts.json").write_text(json.dumps(counts), encoding="utf-8")
    try:
        temporary.rename(folder)
    except OSError:  # another node was faster
        if not folder.is_dir():
            raise
    return folder


# ---------------------------------------------------------------------------------------------- tokens to batches


def pack(documents, lengths, sequence_len):
    """Best fit, longest first: lists of documents, each list at most `sequence_len` tokens."""
    rows, free = [], []  # free: (tokens left, row), ascending
    for document in sorted(documents, key=lambda d: (-lengths[d], d)):
        place = bisect.bisect_left(free, (lengths[document], -1))
        if place < len(free):
            left, row = free.pop(place)
        else:
            left, row = sequence_len, len(rows)
            rows.append([])
        rows[row].append(document)
        bisect.insort(free, (left - lengths[document], row))
    return rows


class Sequences(torch.utils.data.Dataset):
    """What one row of a batch holds: a list of documents, in memory-mapped arrays. -1 is an empty row."""

    def __init__(self, folder, rows):
        self.tokens, self.targets, self.bounds = (
            np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("tokens", "targets", "bounds")
        )
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if index < 0:
            return [(np.zeros(1, np.int32), np.full(1, IGNORE, np.int32))]
        spans = [slice(self.bounds[d], self.bounds[d + 1]) for d in self.rows[index]]
        return [(self.tokens[span], self.targets[span]) for span in spans]


def split(folder, recipe):
    """Training and validation sequences. Validation documents are drawn by the seed, before packing."""
    bounds = np.load(folder / "bounds.npy")
    lengths, data = np.diff(bounds), recipe.data
    shuffled = np.random.default_rng(recipe.seed).permutation(len(lengths))
    held_out = int(data.val_set_size * len(lengths)) if data.val_set_size < 1 else int(data.val_set_size)
    if held_out >= len(lengths):
        raise Problem(f"val_set_size takes {held_out} of {len(lengths)} documents; nothing is left to train on")
    found = []
    for documents in (sorted(shuffled[held_out:].tolist()), sorted(shuffled[:held_out].tolist())):
        rows = pack(documents, lengths, data.sequence_len) if data.packing else [[d] for d in documents]
        found.append(Sequences(folder, rows))
    return found


class Stream(torch.utils.data.Sampler):
    """Lists of sequence indexes, one for each micro-batch of this rank, from optimizer step `first` to `last`."""

    def __init__(self, recipe, sequences, rank, first, last):
        self.batch, self.seed, self.rank, self.sequences = recipe.batch, recipe.seed, rank, sequences
        self.first, self.last = first, last

    def __len__(self):
        return (self.last - self.first) * self.batch.gradient_accumulation

    def __iter__(self):
        epoch, order = None, None
        for micro in range(self.first * self.batch.gradient_accumulation, self.last * self.batch.gradient_accumulation):
            start = (micro * self.batch.world_size + self.rank) * self.batch.micro_batch_size
            indexes = []
            for position in range(start, start + self.batch.micro_batch_size):
                if position // self.sequences != epoch:
                    epoch = position // self.sequences
                    order = np.random.default_rng([self.seed, epoch]).permutation(self.sequences)
                indexes.append(int(order[position % self.sequences]))
            yield indexes


def collate(rows, data):
    """Tensors of (rows, length): input_ids, targets and, when packing, position_ids."""
    width = data.sequence_len if data.pad_to_sequence_len else 0
    if data.flatten:
        width *= len(rows)
        rows = [[document for row in rows for document in row]]
    width = max([width] + [sum(len(ids) for ids, _ in row) for row in rows])
    ids = np.zeros((len(rows), width), np.int64)
    targets = np.full((len(rows), width), IGNORE, np.int64)
    positions = np.zeros((len(rows), width), np.int64)
    for number, row in enumerate(rows):
        at = 0
        for tokens, wanted in row:
            here = slice(at, at + len(tokens))
            ids[number, here], targets[number, here], positions[number, here] = tokens, wanted, np.arange(len(tokens))
            at = here.stop
        positions[number, at:] = np.arange(width - at)
    batch = {"input_ids": ids, "targets": targets}
    if data.packing:
        batch["position_ids"] = positions
    return {name: torch.from_numpy(values) for name, values in batch.items()}
