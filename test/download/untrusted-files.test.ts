import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { until } from '../support/corral.ts'
import { ggufText, u32, u64 } from '../support/gguf-writer.ts'
import type { EmulatedFile } from '../support/hub-emulator/contents.ts'
import { startHubEmulator } from '../support/hub-emulator/hub-emulator.ts'
import { corralWithHub, largeGguf, listed, MIB, pulls, refusal, TINY_CHAT, TINY_SAFETENSORS } from './support.ts'

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

t.test('files of a hub that cannot be read are refused with the reason', { timeout: 240_000 }, async t => {
  const repositories: Record<string, [files: Record<string, EmulatedFile>, code: string, why: RegExp]> = {
    list: [{ 'a-Q8_0.gguf': listOf(32 * MIB) }, 'unsupported_capability', /a-Q8_0\.gguf holds no weights/],
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
      described({ 'model.safetensors': safetensorsHeader(`{"__metadata__":{"a":[${'[],'.repeat(3_000_000)}0]}}`) }),
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
    ],
    listing: [
      many(101_000, { 'a-Q8_0.gguf': 'x' }),
      'unsupported_capability',
      /more than 100,000 files|1,000,000 lists/
    ]
  }
  const hub = await startHubEmulator(t, {
    repositories: Object.fromEntries(Object.entries(repositories).map(([name, [files]]) => [`o/${name}`, { files }]))
  })
  const corral = await corralWithHub(t, hub)
  for (const [name, [, code, why]] of Object.entries(repositories)) {
    t.match(await refusal(corral, { model: `o/${name}` }), { code, error: why }, name)
  }
  t.same(await listed(corral), [])
})

t.test('a model is found in a listing of 40,000 files', { timeout: 240_000 }, async t => {
  const files = many(40_000, { 'tiny-F16.gguf': readFileSync(TINY_CHAT) })
  const hub = await startHubEmulator(t, { repositories: { 'o/many': { files } } })
  const corral = await corralWithHub(t, hub)
  t.equal((await corral.json('/api/pull', { model: 'o/many', stream: false })).status, 200)
  t.same(await listed(corral), ['o/many'])
})

t.test('SafeTensors with Infinity in their config.json are pulled', async t => {
  const folder = mkdtempSync(join(tmpdir(), 'corral-test-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
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

t.test('a pull whose files ended the process is set aside at the next start', { timeout: 120_000 }, async t => {
  const hub = await startHubEmulator(t, {
    repositories: { 'o/set-aside': { files: { 'a-Q8_0.gguf': largeGguf(8 * MIB) } } },
    bandwidth: { total: MIB }
  })
  let corral = await corralWithHub(t, hub)
  const { home } = corral
  await corral.json('/api/pull', { model: 'o/set-aside', detach: true })
  await until('bytes flow', () => hub.traffic.bytes() > MIB)
  const [{ id }] = await pulls(corral)
  await corral.end('SIGKILL')
  writeFileSync(join(home, 'models', '.downloads', id, 'reading'), '')
  hub.bandwidth = {}
  const before = hub.traffic.bytes()
  for (const start of ['first', 'second']) {
    corral = await corralWithHub(t, hub, { home })
    const reason = /corral ended while it read the files of this pull.*Resume it to try again, or cancel it/
    t.match(await pulls(corral), [{ id, state: 'failed', reason }], `${start} start`)
    if (start === 'first') await corral.end()
  }
  t.equal(hub.traffic.bytes(), before, 'nothing is fetched')
  t.equal((await corral.json('/api/pulls/resume', { id })).status, 200)
  await until('the pull has ended', async () => (await pulls(corral)).length === 0)
  t.equal((await listed(corral)).length, 1)
})
