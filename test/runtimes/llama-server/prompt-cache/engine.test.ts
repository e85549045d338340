import { readdirSync, readFileSync, rmSync, truncateSync, unlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import type { Delta, EngineFields } from '../../../../core/contracts/engines.ts'
import { readText } from '../../../../core/system/response-body.ts'
import type { LlamaServerEngine } from '../../../../runtimes/llama-server/engine.ts'
import { randomProjector } from '../../../../scripts/random-models.ts'
import { pngBytes } from '../../../plugins/apis/openai/media/support.ts'
import { thorough } from '../../../support/thorough.ts'
import { engineSpec } from '../support.ts'
import { longText, type Message, NEVER, promptCacheIn, type Said, say, startWith, takeTurns } from './support.ts'

const THREE = [1, 2, 3].map(seed => longText(400, seed))
const answers = (said: Said[][]) => said.map(turns => turns.map(({ message }) => message.content))
/** Whether few tokens were processed again. The tokens of the last answer and question do not count. */
const isFound = ({ prompt, cached }: Said) => prompt - cached < 40

/** The files of saved states. */
const files = (root: string) =>
  readdirSync(root, { recursive: true, encoding: 'utf8' }).filter(name => name.endsWith('.slot'))

t.test('conversations that take turns on fewer slots are never processed again', async t => {
  const alone = await startWith(t, undefined, { num_parallel: 3, num_ctx: 2048 })
  const expected = await takeTurns(alone, THREE, 3)
  for (const [num_parallel, ownerOf] of [
    [1, () => 'keyless'],
    [2, (at: number) => `owner ${at}`]
  ] as const) {
    const root = t.testdir()
    const { cache } = promptCacheIn(root)
    const engine = await startWith(t, cache, { num_parallel, num_ctx: 2048 })
    const said = await takeTurns(engine, THREE, 3, ownerOf)
    t.same(answers(said), answers(expected), `${num_parallel} slots: the answers are those of an undisturbed engine`)
    for (const turns of said) t.ok(turns.slice(1).every(isFound), 'only what is new is processed')
    t.match(await cache.summaries(), [{ model: engine.spec.variant.key, conversations: 3, disk: 0 }])
    await engine.stop()
  }
})

t.test('a conversation continues in another engine, with other options, after a restart', async t => {
  const root = t.testdir()
  const { cache } = promptCacheIn(root)
  const engine = await startWith(t, cache, { num_parallel: 2, num_ctx: 2048 })
  const messages: Message[] = [{ role: 'user', content: THREE[0]! }]
  messages.push((await say(engine, messages)).message, { role: 'user', content: 'What is the capital of France?' })
  await engine.promptSlots.saveAll()
  await cache.sealed()
  const warm = await say(engine, messages)
  await engine.stop()
  for (const [options, what] of [
    [{ num_parallel: 2, num_ctx: 2048 }, 'the same options'],
    [{ num_parallel: 1, num_ctx: 2048 }, 'fewer slots'],
    [{ num_parallel: 5, num_ctx: 1024 }, 'more slots than the only one, a smaller context']
  ] as const) {
    const { cache } = promptCacheIn(root)
    const next = await startWith(t, cache, options)
    const reply = await say(next, messages)
    t.same(reply.message, warm.message, `${what}: the same answer`)
    t.ok(isFound(reply), `${what}: ${reply.cached} of ${reply.prompt} tokens were restored`)
    await next.promptSlots.saveAll()
    await cache.sealed()
    await next.stop()
  }
  for (const [options, what] of [
    [{ cache_type_k: 'q8_0', cache_type_v: 'q8_0' }, 'another cache type'],
    [{ num_ctx: 512 }, 'a context that is too small']
  ] as const) {
    const { cache } = promptCacheIn(root)
    const next = await startWith(t, cache, { num_parallel: 1, num_ctx: 2048, ...options })
    const short = [{ ...messages[0]!, content: messages[0]!.content.slice(0, 800) }]
    t.equal((await say(next, short)).cached, 0, what)
    await next.stop()
  }
  const { cache: last } = promptCacheIn(root)
  t.ok((await last.forget({ variant: 'corral/tiny-chat:f16' })) > 0)
  t.same(files(root), [])
})

t.test('a request that forbids it is not stored, and a key takes its states with it', async t => {
  const root = t.testdir()
  const { cache } = promptCacheIn(root)
  const engine = await startWith(t, cache, { num_parallel: 1, num_ctx: 2048 })
  await say(engine, [{ role: 'user', content: THREE[0]! }], 'a', { cache_prompt: false })
  await engine.promptSlots.saveAll()
  await cache.sealed()
  t.same(files(root), [])
  await say(engine, [{ role: 'user', content: THREE[1]! }], 'a')
  await say(engine, [{ role: 'user', content: THREE[2]! }], 'b')
  await engine.promptSlots.saveAll()
  await cache.sealed()
  t.equal(files(root).length, 2)
  t.equal(await cache.forget({ owner: 'a' }), 1)
  t.equal(files(root).length, 1)
  await engine.promptSlots.saveAll()
  await say(engine, [{ role: 'user', content: THREE[0]! }], 'a')
  await engine.promptSlots.saveAll()
  t.equal(files(root).length, 1, 'a prompt that was running when its key was revoked is not stored either')

  await say(engine, [{ role: 'user', content: THREE[0]! }], 'b')
  const saving = engine.promptSlots.saveAll()
  await cache.forget({})
  await saving
  t.same(files(root), [], 'a save that had begun when all was deleted leaves nothing')
})

t.test('deleting the folders while an engine runs loses only the cache', async t => {
  const root = t.testdir()
  const { cache } = promptCacheIn(root)
  const engine = await startWith(t, cache, { num_parallel: 1, num_ctx: 2048 })
  await takeTurns(engine, THREE.slice(0, 2), 1)
  rmSync(join(root, 'disk'), { recursive: true })
  rmSync(join(root, 'memory'), { recursive: true })
  const said = await takeTurns(engine, THREE, 2)
  t.ok(said.every(turns => turns.every(({ message }) => message.content !== '')))
  t.ok(
    said.every(turns => isFound(turns[1]!)),
    'and from then on states are stored again'
  )
})

t.test('a damaged file never reaches an engine', async t => {
  const messages: Message[] = [{ role: 'user', content: THREE[0]! }]
  const root = t.testdir()
  const { cache, said } = promptCacheIn(root)
  const engine = await startWith(t, cache, { num_parallel: 1, num_ctx: 2048 })
  const first = await say(engine, messages)
  for (const [damage, change] of [
    ['cut', (path: string) => truncateSync(path, 1000)],
    ['missing', unlinkSync],
    [
      'flipped',
      (path: string) => {
        const bytes = readFileSync(path)
        bytes[bytes.length >> 1]! ^= 0x40
        writeFileSync(path, bytes)
      }
    ]
  ] as const) {
    await say(engine, [{ role: 'user', content: THREE[1]! }])
    t.match([await cache.summaries(), files(root)], [[{}], [String]])
    // The times of files are as coarse as the kernel's clock.
    await sleep(20)
    for (const each of files(root)) change(join(root, each))
    said.length = 0
    const again = await say(engine, messages)
    t.same(again.message, first.message, `${damage}: the answer is right`)
    t.ok(again.cached < 20, 'and its prompt was processed')
    t.match(said.join('\n'), /deleting a useless saved prompt cache/)
  }
})

t.test('a cache survives an engine that is killed during a save', thorough, async t => {
  const root = t.testdir()
  const { cache, said } = promptCacheIn(root)
  const engine = await startWith(t, cache, { num_parallel: 1, num_ctx: 4096 })
  await say(engine, [{ role: 'user', content: longText(1000) }])
  const saving = engine.promptSlots.saveAll()
  process.kill(engine.pid!, 'SIGKILL')
  await saving
  await engine.exited
  const { cache: later } = promptCacheIn(root)
  const next = await startWith(t, later, { num_parallel: 1, num_ctx: 4096 })
  t.ok((await say(next, [{ role: 'user', content: 'Hello' }])).message.content, 'the next engine serves')
  t.notOk(said.some(message => /useless/.test(message)))
})

t.test('a conversation with an image continues in another engine, but not with another image', thorough, async t => {
  const root = t.testdir({ 'mmproj.gguf': randomProjector('vision') })
  const { cache, said } = promptCacheIn(join(root, 'states'))
  const see = (seed: number, ...more: object[]): EngineFields => {
    const url = `data:image/png;base64,${pngBytes(32, 32, seed).toString('base64')}`
    const content = [
      { type: 'text', text: THREE[0] },
      { type: 'image_url', image_url: { url } },
      { type: 'text', text: 'What is this?' }
    ]
    return { messages: [{ role: 'user', content }, ...more] }
  }
  const start = () =>
    startWith(t, cache, { num_parallel: 1, num_ctx: 2048 }, { projectorPath: join(root, 'mmproj.gguf') })
  const engine = await start()
  const next = [(await say(engine, [], 'a', see(1))).message, { role: 'user', content: 'And then?' }]
  await engine.promptSlots.saveAll()
  const expected = await say(engine, [], 'a', see(1, ...next))
  await engine.stop()
  const later = await start()
  t.same(await say(later, [], 'a', see(1, ...next)), expected, 'the same answer and counts')
  t.ok(isFound(expected))
  const other = await say(later, [], 'a', see(2, ...next))
  t.ok(other.prompt - other.cached > 16, `${other.prompt - other.cached} tokens from the image on are processed`)
  t.notMatch(said.join('\n'), /not saved|useless/)
})

t.test('several choices process a long prompt once', thorough, async t => {
  const { cache } = promptCacheIn(t.testdir())
  const options = { num_parallel: 3, num_ctx: 2048 }
  const plain = await startWith(t, undefined, options)
  const sharing = await startWith(t, cache, options)
  const ask = async (engine: LlamaServerEngine, n: number) => {
    const texts: string[] = []
    const cached: number[] = []
    const take = (deltas: readonly Delta[]) => {
      for (const { choice = 0, content = '', usage } of deltas) {
        texts[choice] = (texts[choice] ?? '') + content
        if (usage) cached[choice] = usage.cachedTokens
      }
      return undefined
    }
    const messages = [{ role: 'user', content: longText(700) }]
    await engine.chat!({ messages, n, seed: 5, max_tokens: 8 }, { signal: NEVER, owner: 'a', take })
    const metrics = await readText((await engine.request({ method: 'GET', path: '/metrics' })).body)
    return { texts, cached, processed: Number(/^llamacpp:prompt_tokens_total (\d+)/m.exec(metrics)?.[1]) }
  }
  const [apart, together] = [await ask(plain, 3), await ask(sharing, 3)]
  t.same(together.texts, apart.texts, 'the same answers')
  t.equal(new Set(together.texts).size, 3, 'which differ')
  t.ok(apart.processed > 4000, `without stored states ${apart.processed} tokens are processed`)
  t.ok(together.processed < 1800, `otherwise ${together.processed}`)
  t.same(together.cached, [0, 0, 0], 'no choice counts what the request itself has processed as cached')
  const again = await ask(sharing, 2)
  t.ok(
    again.cached.every(count => count > 1000),
    `what was cached before counts: ${again.cached}`
  )
})

t.test('a cache stores nothing without a budget, room or a folder', async t => {
  const root = t.testdir({ file: '' })
  t.equal(await promptCacheIn(root).cache.folderFor(engineSpec({ mode: 'embedding' })), undefined)
  t.equal(await promptCacheIn(root, 0).cache.folderFor(engineSpec()), undefined, 'no budget')
  const broken = promptCacheIn(join(root, 'file'))
  t.equal(await broken.cache.folderFor(engineSpec()), undefined)
  t.match(broken.said, [/cannot be saved/], 'a folder that cannot be created')
  const { cache } = promptCacheIn(root, 1000)
  const engine = await startWith(t, cache, { num_parallel: 1, num_ctx: 2048 })
  await takeTurns(engine, THREE, 1)
  await engine.promptSlots.saveAll()
  await cache.sealed()
  t.same(files(root), [], 'states larger than the budget')
})
