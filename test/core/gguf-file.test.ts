import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setImmediate as nextTurn } from 'node:timers/promises'
import t from 'tap'
import { readGguf, readGgufHeader } from '../../core/models/gguf-file.ts'
import { ggufBytes, ggufText, u32, u64 } from '../support/gguf-writer.ts'

const UINT8 = 0
const UINT32 = 4
const STRING = 8
const ARRAY = 9

const header = (tensors: number | bigint, keys: number | bigint, ...parts: Buffer[]) =>
  Buffer.concat([Buffer.from('GGUF'), u32(3), u64(tensors), u64(keys), ...parts])
const key = (name: string, type: number, ...value: Buffer[]) => Buffer.concat([ggufText(name), u32(type), ...value])
const list = (type: number, length: number | bigint, ...items: Buffer[]) =>
  key('a.list', ARRAY, u32(type), u64(length), ...items)
const tensor = (shape: (number | bigint)[], { name = 'a', offset = 0n, dimensions = shape.length } = {}) =>
  Buffer.concat([ggufText(name), u32(dimensions), ...shape.map(u64), u32(0), u64(offset)])

t.test('readGguf refuses an impossible header before using its counts', async t => {
  const path = join(t.testdir(), 'm.gguf')
  const alignment = (type: number, value: Buffer) => header(0, 1, key('general.alignment', type, value))
  // Makes room for the counts in the file.
  const room = Buffer.alloc(400_000)
  const cases: [what: string, bytes: Buffer, why: RegExp][] = [
    ['a list of 2^32 numbers', header(0, 1, list(UINT8, 2n ** 32n)), /continues after its \d+ bytes/],
    ['a list of 2^63 numbers', header(0, 1, list(UINT8, 2n ** 63n)), /continues after/],
    ['a list of 2^63 texts', header(0, 1, list(STRING, 2n ** 63n)), /continues after/],
    ['a list of a text of 2^40 bytes', header(0, 1, list(STRING, 1, u64(2n ** 40n))), /continues after/],
    ['a list of lists', header(0, 1, list(ARRAY, 1, u32(UINT8), u64(1), room)), /value of the unknown type 9/],
    ['a text of 2^64 - 1 bytes', header(0, 1, key('a', STRING, u64(2n ** 64n - 1n))), /continues after/],
    ['a name of 2^40 bytes', header(0, 1, u64(2n ** 40n)), /name of 1099511627776 bytes/],
    ['2^60 keys', header(0, 2n ** 60n), /more keys and tensors than fit/],
    ['2^60 tensors', header(2n ** 60n, 0), /more keys and tensors than fit/],
    ['20,000 keys', header(0, 20_000, room), /20000 keys, more than 10000/],
    ['a key twice', header(0, 2, key('a', UINT8, Buffer.alloc(1)), key('a', UINT32, u32(1))), /the key "a" twice/],
    ['a key of an unknown type', header(0, 1, key('a', 77, room)), /unknown type 77/],
    ['an alignment that is a text', alignment(STRING, ggufText('x')), /general\.alignment is not a uint32/],
    ['an alignment of 0', alignment(UINT32, u32(0)), /general\.alignment is 0/],
    ['an alignment of 48', alignment(UINT32, u32(48)), /general\.alignment is 48/],
    ['a tensor twice', header(2, 0, tensor([1]), tensor([1])), /the tensor "a" twice/],
    ['2^31 dimensions', header(1, 0, tensor([], { dimensions: 2 ** 31 }), room), /2147483648 dimensions/],
    ['a dimension of 2^40', header(1, 0, tensor([2n ** 40n])), /impossible shape/],
    ['dimensions with an overflow', header(1, 0, tensor([2 ** 32, 2 ** 32, 4])), /impossible shape/],
    ['an offset of -1', header(1, 0, tensor([1], { offset: 2n ** 64n - 1n })), /impossible offset/],
    [
      'an offset beyond the file',
      header(1, 0, tensor([1], { offset: 2n ** 40n })),
      /its tensors need 1099511627\d+ bytes/
    ],
    ['a vocabulary of numbers', header(0, 1, key('tokenizer.ggml.tokens', ARRAY, u32(UINT8), u64(0))), /list of texts/],
    [
      'a name with a line feed',
      header(1, 0, tensor([2n ** 40n], { name: 'x\n\u001b[31m' })),
      /"x\\\\u000a\\\\u001b\[31m"/
    ]
  ]
  for (const [what, bytes, why] of cases) {
    writeFileSync(path, bytes)
    await t.rejects(readGguf(path), { code: 'invalid_request', message: why }, what)
  }
})

t.test('readGguf skips long lists and texts, and other work gets its turn', async t => {
  const path = join(t.testdir(), 'm.gguf')
  const texts = 1_500_000
  const numbers = 32 * 2 ** 20
  const bytes = header(
    0,
    5,
    list(UINT8, numbers, Buffer.alloc(numbers)),
    key('tokenizer.ggml.tokens', ARRAY, u32(STRING), u64(texts + 1), Buffer.alloc(8 * texts), ggufText('<PRE>')),
    key('general.tags', ARRAY, u32(STRING), u64(1), ggufText('x')),
    key('tokenizer.huggingface.json', STRING, ggufText('x'.repeat(5_000_000))),
    key('a', UINT32, u32(7))
  )
  writeFileSync(path, bytes)
  let turns = 0
  let isDone = false
  const reading = readGguf(path, undefined, ['<SUF>', '<PRE>']).finally(() => {
    isDone = true
  })
  while (!isDone) {
    await nextTurn()
    turns++
  }
  const { metadata, hasToken } = await reading
  t.same(metadata, {
    'a.list': { length: numbers },
    'tokenizer.ggml.tokens': { length: texts + 1 },
    'general.tags': ['x'],
    'tokenizer.huggingface.json': undefined,
    a: 7
  })
  t.ok(hasToken)
  t.notOk((await readGguf(path, undefined, ['<SUF>', 'PRE'])).hasToken)
  t.ok(turns >= (8 * texts) / 2 ** 20, `${turns} turns`)
})

t.test('readGguf says what a file is that is not a GGUF', async t => {
  const path = join(t.testdir(), 'm.gguf')
  const pointer = `version https://git-lfs.github.com/spec/v1\noid sha256:${'ab'.repeat(32)}\nsize 4096608\n`
  const cases: [content: string, why: RegExp][] = [
    [pointer, /m\.gguf" is a Git LFS pointer, not the model itself: run "git lfs pull"/],
    [
      '\ufeff\n<!DOCTYPE html><html><head><title>\n Sign\tin </title>',
      /m\.gguf" is a web page \(its title: "Sign in"\), not/
    ],
    ['<HTML lang="de">', /m\.gguf" is a web page, not a model/],
    [`<html><title>${'\u001b[31m'.repeat(1000)}</title>`, /title: "(?:\\\\u001b\[31m){16}…"\)/],
    ['hello', /m\.gguf is not a GGUF file/],
    ['', /m\.gguf is not a GGUF file/]
  ]
  for (const [content, message] of cases) {
    writeFileSync(path, content)
    await t.rejects(readGgufHeader(path), { code: 'invalid_request', message }, content.slice(0, 40))
  }
  writeFileSync(path, ggufBytes())
  t.equal((await readGgufHeader(path)).tensors.length, 1)
})
