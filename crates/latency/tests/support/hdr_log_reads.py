"""Decodes a log of HdrHistogram by its documentation and prints each line's count, median and maximum as JSON."""

import base64
import json
import struct
import sys
import zlib


def number(data, at):
    """A zig-zag number of LEB128 in which the ninth byte is whole, and where the next one is."""
    value = shift = 0
    for length in range(1, 10):
        byte = data[at]
        at += 1
        value |= (byte if length == 9 else byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value >> 1 ^ -(value & 1), at


def low(index):
    """The smallest value of a bucket: 2048 of one unit, then 1024 for each octave."""
    octave = max(0, (index >> 10) - 1)
    return (index - (octave << 10)) << octave


def histogram(text):
    outer = base64.b64decode(text, validate=True)
    cookie, length = struct.unpack(">II", outer[:8])
    assert cookie == 0x1C849314 and length == len(outer) - 8, (hex(cookie), length)
    inner = zlib.decompress(outer[8:])
    cookie, length, offset, digits, lowest, highest, ratio = struct.unpack(">IIIIQQd", inner[:40])
    assert (cookie, offset, digits, lowest, ratio) == (0x1C849313, 0, 3, 1, 1.0), inner[:40].hex()
    assert length == len(inner) - 40
    counts, index, at = [], 0, 40
    while at < len(inner):
        count, at = number(inner, at)
        if count < 0:
            index -= count
        else:
            counts += [(low(index), count)] if count else []
            index += 1
    assert low(max(0, index - 1)) <= highest
    return counts


lines = sys.stdin.read().splitlines()
assert "#[Histogram log format version 1.3]" in lines
assert any(line.startswith("#[StartTime: 1700000001.000 (seconds since epoch)") for line in lines)
found = []
for line in lines:
    if line.startswith(("#", '"')):
        continue
    start, length, most_ms, text = line.split(",")
    counts = histogram(text)
    total = sum(count for _, count in counts)
    below, median = 0, None
    for value, count in counts:
        below += count
        if median is None and below * 2 >= total:
            median = value
    highest = counts[-1][0] if counts else 0
    found.append([float(start), float(length), total, median, highest, float(most_ms)])
print(json.dumps(found))
