import { existsSync, readdirSync, readFileSync, statSync, truncateSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import t from 'tap'
import type { LlamaServerEngine } from '../../../../runtimes/llama-server/engine.ts'
import type { SavedSlot } from '../../../../runtimes/llama-server/prompt-cache/cache-store.ts'
import type { EngineRequest } from '../../../../runtimes/llama-server/upstream.ts'
import { engineBody } from '../../../support/engine-body.ts'
import { engineSpec, realBuild } from '../support.ts'
import { all, longText, type Message, NEVER, ownedByOne, promptCacheIn, say, startWith } from './support.ts'

const FOLLOW_UP: Message = { role: 'user', content: 'What is the capital of France?' }

function listOf(folder: string): SavedSlot[] {
  return JSON.parse(readFileSync(join(folder, 'manifest.json'), 'utf8')).slots
}

/** Creates a conversation with an engine, its continuation there, and its saved cache. */
async function savedConversation(t: Parameters<typeof startWith>[0], directory: string, options = {}) {
  const { cache, said } = promptCacheIn(directory)
  const engine = await startWith(t, cache, { num_parallel: 2, num_ctx: 2048, ...options })
  const messages: Message[] = [{ role: 'user', content: longText(400) }]
  const first = await say(engine, messages)
  messages.push(first.message, FOLLOW_UP)
  await cache.save(engine)
  const warm = await say(engine, messages)
  await engine.stop()
  return { cache, said, messages, first, warm, folder: engine.spec.slotFolder! }
}

t.test('a conversation continues with another engine', async t => {
  const directory = join(t.testdir(), 'prompts')
  const { cache, said, messages, first, warm, folder } = await savedConversation(t, directory)
  t.match(said, [/^saved prompt caches/])
  const [saved] = listOf(folder)
  t.ok(saved!.tokens > first.read && saved!.tokens <= first.read + 12)
  t.equal(statSync(join(folder, saved!.file)).mode & 0o777, 0o600)
  t.equal(saved!.streams, 2)

  for (const [options, what] of [
    [{ num_parallel: 2, num_ctx: 2048 }, 'the same options'],
    [{ num_parallel: 1, num_ctx: 2048 }, 'fewer slots'],
    [{ num_parallel: 5, num_ctx: 1024 }, 'more slots, a smaller context']
  ] as const) {
    const engine = await startWith(t, cache, options)
    const next = await say(engine, messages)
    t.same(next.message, warm.message, `${what}: the same answer`)
    t.equal(next.read, warm.read, `${what}: prefill is no longer than without an unload`)
    await engine.stop()
    t.same(readdirSync(folder).sort(), ['manifest.json', saved!.file].sort(), 'nothing else is in the folder')
  }

  const later = promptCacheIn(directory)
  const restarted = await startWith(t, later.cache, { num_parallel: 2, num_ctx: 2048 })
  t.equal((await say(restarted, messages)).read, warm.read, 'after a restart of corral')
  await restarted.stop()

  for (const [options, what] of [
    [{ cache_type_k: 'q8_0', cache_type_v: 'q8_0' }, 'another cache type'],
    [{ num_ctx: 512 }, 'a context that is too small']
  ] as const) {
    const engine = await startWith(t, cache, { num_parallel: 1, num_ctx: 2048, ...options })
    t.ok(
      (
        await say(
          engine,
          [messages[0]!].map(m => ({ ...m, content: m.content.slice(0, 800) }))
        )
      ).read > 100,
      what
    )
    await engine.stop()
    t.same(listOf(folder), [saved], `${what}: the file stays for another time`)
  }

  await cache.forget('corral/tiny-chat:f16')
  t.notOk(existsSync(folder))
  const engine = await startWith(t, cache, { num_parallel: 2, num_ctx: 2048 })
  const cold = await say(engine, messages)
  t.ok(cold.read > 5 * warm.read, 'a forgotten conversation is processed again')
  t.same(cold.message, warm.message)
})

t.test('saves only changed conversations, each once', async t => {
  const directory = join(t.testdir(), 'prompts')
  const { cache, folder, messages } = await savedConversation(t, directory, { num_parallel: 2 })
  const [before] = listOf(folder)
  const untouched = await startWith(t, cache, { num_parallel: 2, num_ctx: 2048 })
  await cache.save(untouched)
  t.same(listOf(folder), [before], 'no message was logged')
  await untouched.stop()

  const engine = await startWith(t, cache, { num_parallel: 2, num_ctx: 2048 })
  await say(engine, messages)
  await say(engine, [{ role: 'user', content: longText(200, 2) }])
  await say(engine, [{ role: 'user', content: 'Hello' }], 1)
  await cache.save(engine)
  await engine.stop()
  const after = listOf(folder)
  t.equal(readdirSync(folder).length, after.length + 1)
  t.notOk(after.some(slot => slot.file === before!.file && slot.tokens > before!.tokens))
  t.ok(
    after.every((slot, i) => i === 0 || after[i - 1]!.usedAt >= slot.usedAt),
    'the latest first'
  )

  // A single slot gets the latest conversation.
  const single = await startWith(t, cache, { num_parallel: 1, num_ctx: 2048 })
  const another: Message[] = [{ role: 'user', content: longText(300, 3) }]
  await say(single, another)
  await cache.save(single)
  await single.stop()
  t.equal(listOf(folder).length, after.length + 1, 'other conversations stay')
  const again = await startWith(t, cache, { num_parallel: 1, num_ctx: 2048 })
  t.ok((await say(again, another)).read < 20)
  await again.stop()
})

t.test('a damaged file never reaches an engine', async t => {
  const directory = join(t.testdir(), 'prompts')
  for (const damage of ['cut', 'flipped', 'gone'] as const) {
    const { cache, said, folder, messages, warm } = await savedConversation(t, directory)
    const [saved] = listOf(folder)
    const path = join(folder, saved!.file)
    if (damage === 'cut') truncateSync(path, saved!.bytes - 1)
    else if (damage === 'gone') writeFileSync(path, '')
    else {
      const bytes = readFileSync(path)
      bytes[bytes.length >> 1]! ^= 0x40
      writeFileSync(path, bytes)
    }
    said.length = 0
    const engine = await startWith(t, cache, { num_parallel: 2, num_ctx: 2048 })
    t.match(said[0], /deleting a useless saved prompt cache: the file is damaged/, damage)
    t.notOk(existsSync(path))
    const next = await say(engine, messages)
    t.same(next.message, warm.message)
    t.ok(next.read > 5 * warm.read)
    await engine.stop()
    await cache.forget('corral/tiny-chat:f16')
  }
})

t.test('survives an engine that is killed', async t => {
  const directory = join(t.testdir(), 'prompts')
  const { cache, said } = promptCacheIn(directory)
  const engine = await startWith(t, cache, { num_parallel: 1, num_ctx: 4096 })
  await say(engine, [{ role: 'user', content: longText(1000) }])
  const saving = cache.save(engine)
  process.kill(engine.pid!, 'SIGKILL')
  await saving
  await engine.exited
  t.ok(said.length, 'it is logged')
  await cache.save(engine)
  await cache.restore(engine, all, NEVER)
  const { cache: later, said: told } = promptCacheIn(directory)
  const next = await startWith(t, later, { num_parallel: 1, num_ctx: 4096 })
  t.ok((await say(next, [FOLLOW_UP])).message.content, 'the next engine serves')
  t.notOk(told.some(message => /useless saved prompt cache/.test(message)))
})

t.test('does not save the caches of unsuitable engines', async t => {
  const directory = join(t.testdir(), 'prompts')
  const { cache } = promptCacheIn(directory)
  t.equal(await cache.folderFor(engineSpec({ mode: 'embedding' })), undefined)
  t.equal(await promptCacheIn(directory, 0).cache.folderFor(engineSpec()), undefined, 'no budget')
  t.notOk(existsSync(directory))
  const file = join(t.testdir({ file: '' }), 'file')
  const broken = promptCacheIn(join(file, 'prompts'))
  t.equal(await broken.cache.folderFor(engineSpec()), undefined)
  t.match(broken.said, [/cannot be saved/], 'a folder that cannot be created')
  const engine = await startWith(t, broken.cache, { num_parallel: 1 })
  await say(engine, [{ role: 'user', content: longText(200) }])
  await broken.cache.save(engine)
  await broken.cache.forget(engine.spec.variant.key)
  t.notOk(existsSync(directory))
})

/** Creates an engine that answers with `respond`. Undefined never answers. */
async function scripted(
  cache: ReturnType<typeof promptCacheIn>['cache'],
  respond: (path: string, file: string | undefined) => unknown,
  given: Partial<LlamaServerEngine> = {}
): Promise<LlamaServerEngine & { asked: string[]; end(): void }> {
  const spec = engineSpec({ slotFolder: (await cache.folderFor(engineSpec()))! })
  const asked: string[] = []
  let end = () => {}
  const exited = new Promise<{ code: number; signal: null; expected: boolean }>(resolve => {
    end = () => resolve({ code: 1, signal: null, expected: false })
  })
  const engine = {
    provider: 'fake',
    id: 'scripted',
    spec,
    contextSize: 4096,
    slots: 2,
    memory: undefined,
    build: realBuild(),
    sharedArguments: [],
    slotOwners: await ownedByOne(),
    pid: undefined,
    exited,
    async request({ path, body, signal }: EngineRequest) {
      asked.push(path)
      const file = body === undefined ? undefined : JSON.parse(String(body)).filename
      const answer = respond(path, file === undefined ? undefined : join(spec.slotFolder!, file))
      if (answer === undefined) {
        // Without a real connection nothing else keeps the process alive.
        const alive = setInterval(() => {}, 1000)
        await new Promise((_, reject) => {
          const end = () => reject(signal!.reason)
          if (signal!.aborted) end()
          else signal!.addEventListener('abort', end)
        }).finally(() => clearInterval(alive))
      }
      if (answer instanceof Error) throw answer
      const failed = typeof answer === 'object' && answer !== null && 'error' in answer
      return { status: failed ? 400 : 200, body: engineBody(Readable.from([JSON.stringify(answer)])) }
    },
    stop: async () => end(),
    logTail: () => [],
    ...given
  }
  return { ...engine, asked, end }
}

/** A state of 100 tokens in the second of two streams. */
function stateFile(media = 0): Buffer {
  const tokens = Array.from({ length: 100 }, (_, i) => i)
  const words = [-1, 1, 100, ...tokens, media, ...(media ? [3] : [])]
  return Buffer.from(Int32Array.from([0x67677371, 3, words.length, ...words, 2, 0, 100, 1, 2, 3]).buffer)
}

t.test('survives engines that misbehave', async t => {
  const directory = join(t.testdir(), 'prompts')
  const { cache, said } = promptCacheIn(directory)
  const slots = [
    { id: 0, id_task: 1, n_prompt_tokens: 100 },
    { id: 1, id_task: 7, n_prompt_tokens: 100 },
    { id: 2, id_task: 3, n_prompt_tokens: 63 },
    { id: 3, n_prompt_tokens: 100 }
  ]
  const save = async (onSave: (path: string, file: string) => unknown) => {
    said.length = 0
    const engine = await scripted(cache, (path, file) => (path === '/slots' ? slots : onSave(path, file!)))
    await cache.save(engine)
    engine.end()
    return engine
  }
  const written = (bytes: Buffer) => (_: string, file: string | undefined) => {
    if (file === undefined) return { error: { message: 'no metrics' } }
    writeFileSync(file, bytes)
    return { n_saved: 100, n_written: bytes.length }
  }
  const folder = (await cache.folderFor(engineSpec()))!

  await save(written(stateFile(1)))
  t.match(said[0], /images and sounds are not saved/)
  await save((path, file) => ({ ...(written(stateFile())(path, file) as object), n_written: 5000 }))
  t.match(said[0], /bytes are on the disk/, 'a full disk that the engine did not notice')
  await save(() => ({ error: { message: 'Unable to save slot' } }))
  t.match(said[0], /a prompt cache is not saved: Unable to save slot/)
  await save(() => new Error('connection lost'))
  t.match(said[0], /connection lost/)
  await save((path, file) => ({ ...(written(stateFile())(path, file) as object), n_saved: 3 }))
  t.same(said, [], 'too few tokens after all')
  t.same(readdirSync(folder), [], 'no file stays')

  const good = await save(written(stateFile()))
  t.same(
    good.asked.filter(path => path !== '/metrics'),
    ['/slots', '/slots/1?action=save', '/slots/0?action=save'],
    'used slots with enough tokens, the latest first'
  )
  t.equal(listOf(folder).length, 2)

  const hung = await scripted(cache, () => undefined)
  await cache.save(hung)
  t.match(said.at(-1), /could not be saved/, 'an engine that does not answer is given up')

  const files = listOf(folder)
  const called = new AbortController()
  const off = await scripted(cache, () => {
    called.abort(new Error('stopped'))
    return undefined
  })
  await cache.restore(off, all, called.signal)
  t.same(listOf(folder), files, 'cancelled: all files stay')
  t.equal(off.asked.length, 1)

  const dying = await scripted(cache, () => {
    dying.end()
    return new Error('it died')
  })
  await cache.restore(dying, all, NEVER)
  t.same(listOf(folder), files.slice(1), 'a file that killed an engine is not given to another one')
  t.equal(dying.asked.length, 1, 'and a dead engine gets no more requests')

  const refusing = await scripted(cache, () => ({ error: { message: 'invalid slot save file' } }))
  await cache.restore(refusing, all, NEVER)
  t.match(said.at(-1), /deleting a useless saved prompt cache: invalid slot save file/)
  t.same(listOf(folder), [], 'a file that an engine rejects is deleted')

  const { cache: small, said: told } = promptCacheIn(directory, 700)
  const engine = await scripted(small, (path, file) => (path === '/slots' ? slots : written(stateFile())(path, file)))
  await small.save(engine)
  t.equal(listOf(folder).length, 1, 'as many as the budget allows')
  t.ok(told.length)
})

t.test('skips a restore that takes longer than prefill', async t => {
  const directory = join(t.testdir(), 'prompts')
  const { cache, said, folder } = await savedConversation(t, directory)
  const list = listOf(folder)
  t.type(list[0]!.pace, 'number', 'the engine reports its prefill speed')
  // So large that checking takes longer than prefill at this pace.
  const path = join(folder, list[0]!.file)
  truncateSync(path, 2 ** 30)
  utimesSync(path, new Date(), new Date())
  Object.assign(list[0]!, { bytes: 2 ** 30, pace: 0.001 })
  const manifest = JSON.parse(readFileSync(join(folder, 'manifest.json'), 'utf8'))
  writeFileSync(join(folder, 'manifest.json'), JSON.stringify({ ...manifest, slots: list }))
  const later = promptCacheIn(directory, 2 ** 31)
  const engine = await startWith(t, later.cache, { num_parallel: 2, num_ctx: 2048 })
  t.match(later.said[0], /again is faster than checking/)
  t.ok(existsSync(path))
  await engine.stop()
  t.ok(said.length)
  await cache.forget(engine.spec.variant.key)
})
