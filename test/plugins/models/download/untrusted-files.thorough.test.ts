import { cpSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { newFolder } from '../../../support/folder.ts'
import { ggufText, safetensorsBytes, u32, u64 } from '../../../support/gguf-writer.ts'
import type { EmulatedFile } from '../../../support/hub-emulator/contents.ts'
import { startHubEmulator } from '../../../support/hub-emulator/hub-emulator.ts'
import { thorough } from '../../../support/thorough.ts'
import { answer, corralWithHub, listed, MIB, refusal, TINY_CHAT, TINY_SAFETENSORS } from './support.ts'

/** A GGUF whose header is one list of numbers. */
const listOf = (length: number) =>
  Buffer.concat([
    ...[Buffer.from('GGUF'), u32(3), u64(0), u64(1), ggufText('x.list'), u32(9), u32(0), u64(length)],
    Buffer.alloc(length)
  ])
const safetensorsHeader = (header: string) =>
  Buffer.concat([u64(Buffer.byteLength(header)), Buffer.from(header), Buffer.alloc(16)])
const tokenizer = '{}'
const config = JSON.stringify({ model_type: 'llama', architectures: ['LlamaForCausalLM'] })
const pointer = `version https://git-lfs.github.com/spec/v1\noid sha256:${'ab'.repeat(32)}\nsize 4096608\n`
const many = (count: number, files: Record<string, EmulatedFile>) => ({
  ...Object.fromEntries(Array.from({ length: count }, (_, index) => [`data/${index}.bin`, 'x'])),
  ...files
})
const described = (files: Record<string, EmulatedFile>) => ({
  'config.json': config,
  'tokenizer.json': tokenizer,
  ...files
})

const hub = await startHubEmulator(t, { repositories: {} })
const corral = await corralWithHub(t, hub)

t.test('unreadable files of a hub are refused with the reason', { timeout: 240_000 }, async t => {
  const repositories: Record<string, [files: Record<string, EmulatedFile>, code: string, why: RegExp]> = {
    list: [{ 'a-Q8_0.gguf': listOf(8 * MIB) }, 'unsupported_capability', /a-Q8_0\.gguf has no weights/],
    pointer: [
      { 'a.gguf': pointer },
      'unsupported_capability',
      /"a\.gguf" is a Git LFS pointer, not the model itself\. C/
    ],
    page: [
      { 'a.gguf': '<!doctype html><title>Sign in</title>' },
      'unsupported_capability',
      /"a\.gguf" is a web page \(its title: "Sign in"\), not a model\. C/
    ],
    lists: [
      described({ 'model.safetensors': safetensorsHeader(`{"__metadata__":{"a":[${'[],'.repeat(1_100_000)}0]}}`) }),
      'unsupported_capability',
      /model\.safetensors has a header that cannot be used: it has more than 1,000,000 lists/
    ],
    config: [
      described({ 'config.json': `{"a":${'['.repeat(1000)}`, 'model.safetensors': safetensorsHeader('{}') }),
      'unsupported_capability',
      /config\.json of .* cannot be used: it nests lists and objects more than 64 levels deep/
    ],
    index: [
      described({ 'model.safetensors.index.json': '{', 'model.safetensors': safetensorsHeader('{}') }),
      'unsupported_capability',
      /index\.json of .* cannot be used: it is not JSON/
    ]
  }
  for (const [name, [files, code, why]] of Object.entries(repositories)) {
    hub.add(`o/${name}`, { files })
    t.match(await refusal(corral, { model: `o/${name}` }), { code, error: why }, name)
  }
  t.same(await listed(corral), [])
})

t.test('a listing of more than 100,000 files is refused', { ...thorough, timeout: 240_000 }, async t => {
  const hub = await startHubEmulator(t, {
    repositories: { 'o/many': { files: many(101_000, { 'a-Q8_0.gguf': 'x' }) } }
  })
  const refused = await refusal(await corralWithHub(t, hub), { model: 'o/many' })
  t.match(refused, { code: 'unsupported_capability', error: /more than 100,000 files|1,000,000 lists/ })
})

t.test('a model is found in a listing of 40,000 files', { ...thorough, timeout: 240_000 }, async t => {
  const files = many(40_000, { 'tiny-F16.gguf': readFileSync(TINY_CHAT) })
  const hub = await startHubEmulator(t, { repositories: { 'o/many': { files } } })
  const corral = await corralWithHub(t, hub)
  t.equal((await corral.json('/api/pull', { model: 'o/many', stream: false })).status, 200)
  t.same(await listed(corral), ['o/many'])
})

t.test('weights that the converter does not support are refused before the download', async t => {
  const architecture = '{"architectures":["Odd\\u001bModel"]}'
  const files = described({ 'model.safetensors': safetensorsBytes(), 'config.json': architecture })
  hub.add('o/odd', { files })
  hub.add('o/tiny', { files: { 'tiny-F16.gguf': readFileSync(TINY_CHAT) } })
  const before = hub.traffic.bytes('model.safetensors')
  const withoutEngine = await corralWithHub(t, hub, { env: { CORRAL_LLAMA_CPP: newFolder(t) } })
  const { body } = await withoutEngine.json('/api/pull', { model: 'o/odd', dry_run: true, stream: false })
  t.match(body.warnings ?? body, [
    /converted to GGUF/,
    /Whether llama\.cpp can convert its architecture \(Odd\\u001bModel\) is not known/
  ])
  // The converter is known once an engine build has been found.
  await corral.json('/api/pull', { model: 'o/tiny', stream: false })
  t.match(await answer(corral, 'o/tiny'), /Paris/)
  const refused = await refusal(corral, { model: 'o/odd' })
  const error = /"o\/odd" cannot be converted: .* does not support its architecture, Odd\\u001bModel/
  t.match(refused, { status: 400, code: 'unsupported_capability', error, early: true })
  t.equal(hub.traffic.bytes('model.safetensors'), before)
})

t.test('SafeTensors with Infinity in their config.json are pulled', thorough, async t => {
  const folder = newFolder(t)
  cpSync(TINY_SAFETENSORS, folder, { recursive: true })
  const path = join(folder, 'config.json')
  const text = readFileSync(path, 'utf8').trimEnd().replace(/\}$/, ', "time_step_limit": [0.0, Infinity], "x": NaN}')
  writeFileSync(path, text)
  const files = Object.fromEntries(readdirSync(folder).map(name => [name, readFileSync(join(folder, name))]))
  const hub = await startHubEmulator(t, { repositories: { 'o/infinity': { files } } })
  const corral = await corralWithHub(t, hub)
  t.equal((await corral.json('/api/pull', { model: 'o/infinity', stream: false })).status, 200)
  t.same(await listed(corral), ['o/infinity'])
})
