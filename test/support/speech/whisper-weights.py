"""Writes Whisper's weights in whisper.cpp's format.

Usage: whisper-weights.py model.bin vocabulary.txt ggml-model.bin

The registries that tests can reach have Whisper's weights only in CTranslate2's format (faster-whisper).
"""

import struct
import sys

import numpy as np


def read_variables(path):
    data = open(path, 'rb').read()
    at = 0

    def take(code):
        nonlocal at
        (value,) = struct.unpack_from('<' + code, data, at)
        at += struct.calcsize('<' + code)
        return value

    def text():
        nonlocal at
        length = take('H')
        value = data[at : at + length - 1].decode()
        at += length
        return value

    take('I'), text(), take('I')
    variables = {}
    for _ in range(take('I')):
        name = text()
        shape = [take('I') for _ in range(take('B'))]
        kind, size = take('B'), take('I')
        if kind == 4:
            variables[name] = np.frombuffer(data, np.float16, size // 2, at).reshape(shape)
        at += size
    return variables


def mel_filters(count, rate=16000, bins=201):
    """Slaney's filters, as in librosa."""
    logarithmic = np.log(6.4) / 27

    def to_mel(hertz):
        return 15 + np.log(hertz / 1000) / logarithmic if hertz >= 1000 else 3 * hertz / 200

    mels = np.linspace(0, to_mel(rate / 2), count + 2)
    points = np.where(mels >= 15, 1000 * np.exp(logarithmic * (mels - 15)), 200 * mels / 3)
    slopes = points[:, None] - np.linspace(0, rate / 2, bins)[None, :]
    widths = np.diff(points)
    rising, falling = -slopes[:-2] / widths[:-1, None], slopes[2:] / widths[1:, None]
    filters = np.maximum(0, np.minimum(rising, falling))
    return (filters * (2 / (points[2:] - points[:-2]))[:, None]).astype(np.float32)


def tensors(variables):
    """The tensors under whisper.cpp's names."""

    def linear(name, source, part=slice(None), bias=True):
        yield f'{name}.weight', variables[f'{source}/weight'][part]
        if bias:
            yield f'{name}.bias', variables[f'{source}/bias'][part]

    def norm(name, source):
        yield f'{name}.weight', variables[f'{source}/gamma']
        yield f'{name}.bias', variables[f'{source}/beta']

    for side in ['encoder', 'decoder']:
        yield f'{side}.positional_embedding', variables[f'{side}/position_encodings/encodings']
        width = variables[f'{side}/position_encodings/encodings'].shape[1]
        layer = 0
        while f'{side}/layer_{layer}/ffn/linear_0/weight' in variables:
            target, source = f'{side}.blocks.{layer}', f'{side}/layer_{layer}'
            own = f'{source}/self_attention'
            for number, part in enumerate(['query', 'key', 'value']):
                rows = slice(number * width, (number + 1) * width)
                yield from linear(f'{target}.attn.{part}', f'{own}/linear_0', rows, part != 'key')
            yield from linear(f'{target}.attn.out', f'{own}/linear_1')
            yield from norm(f'{target}.attn_ln', f'{own}/layer_norm')
            if side == 'decoder':
                cross = f'{source}/attention'
                yield from linear(f'{target}.cross_attn.query', f'{cross}/linear_0')
                yield from linear(f'{target}.cross_attn.key', f'{cross}/linear_1', slice(0, width), False)
                yield from linear(f'{target}.cross_attn.value', f'{cross}/linear_1', slice(width, None))
                yield from linear(f'{target}.cross_attn.out', f'{cross}/linear_2')
                yield from norm(f'{target}.cross_attn_ln', f'{cross}/layer_norm')
            yield from linear(f'{target}.mlp.0', f'{source}/ffn/linear_0')
            yield from linear(f'{target}.mlp.2', f'{source}/ffn/linear_1')
            yield from norm(f'{target}.mlp_ln', f'{source}/ffn/layer_norm')
            layer += 1
    for number in [1, 2]:
        yield f'encoder.conv{number}.weight', variables[f'encoder/conv{number}/weight']
        yield f'encoder.conv{number}.bias', variables[f'encoder/conv{number}/bias'].reshape(-1, 1)
    yield from norm('encoder.ln_post', 'encoder/layer_norm')
    yield 'decoder.token_embedding.weight', variables['decoder/embeddings/weight']
    yield from norm('decoder.ln', 'decoder/layer_norm')


def token_bytes():
    """The characters that stand for bytes in GPT-2's vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + at): byte for at, byte in enumerate(others)}


weights, vocabulary, output = sys.argv[1:]
variables = read_variables(weights)
audio = variables['encoder/position_encodings/encodings'].shape
text = variables['decoder/position_encodings/encodings'].shape
tokens = variables['decoder/embeddings/weight'].shape[0]
layers = {side: sum(f'{side}/layer_{n}/ffn/linear_0/weight' in variables for n in range(64)) for side in ['encoder', 'decoder']}
mels = variables['encoder/conv1/weight'].shape[1]
with open(output, 'wb') as file:
    heads = audio[1] // 64
    sizes = [tokens, *audio, heads, layers['encoder'], *text, heads, layers['decoder'], mels, 1]
    file.write(struct.pack('<12i', 0x67676D6C, *sizes))
    filters = mel_filters(mels)
    file.write(struct.pack('<2i', *filters.shape) + filters.tobytes())
    decode = token_bytes()
    words = open(vocabulary, encoding='utf8').read().split('\n')
    words = words[: words.index('<|endoftext|>')]
    file.write(struct.pack('<i', len(words)))
    for word in words:
        encoded = bytes(decode[character] for character in word)
        file.write(struct.pack('<i', len(encoded)) + encoded)
    for name, data in tensors(variables):
        whole = data.ndim < 2 or name.endswith('positional_embedding') or name.endswith(('conv1.bias', 'conv2.bias'))
        data = np.ascontiguousarray(data, np.float32 if whole else np.float16)
        label = name.encode()
        shape = data.shape[::-1]
        file.write(struct.pack(f'<{3 + len(shape)}i', len(shape), len(label), 0 if whole else 1, *shape) + label)
        file.write(data.tobytes())
