import assert from 'node:assert/strict'
import type { EngineProvider } from '../core/contracts/engines.ts'
import type { Hub, HubRepository } from '../core/contracts/hubs.ts'
import { definitionFault } from '../core/plugins/outside-plugins.ts'
import type { PluginDefinition } from '../core/plugins/plugin.ts'
import { startTestCorral, type TestCorral } from './test-corral.ts'
import { type Added, watchedPlugin } from './watched-plugin.ts'

const DEMO = 'corral/tiny-chat'

/** Checks what every plugin must have, whatever it does. */
export function pluginContract(plugin: unknown): void {
  assert.equal(definitionFault(plugin), undefined)
  const { name } = plugin as PluginDefinition
  assert.match(
    name,
    /^[a-z][a-z0-9_-]*$/,
    'a name holds lower-case letters, digits, "-" and "_", and starts with a letter'
  )
}

/**
 * Checks the hub that a plugin adds in its setup: what it lists, where it has files, how it refuses what is not there.
 * @param options `id` of a repository that it has, and one that is `absent`
 */
export async function hubContract(
  plugin: PluginDefinition,
  options: { id: string; absent: string; config?: string }
): Promise<void> {
  pluginContract(plugin)
  await withCorral({ plugin, config: options.config }, async (_, { hubs }) => {
    assert.ok(hubs.length > 0, 'it adds a hub in its setup: context.service("downloads").addHub(…)')
    for (const hub of hubs) await checkHub(hub, options)
  })
}

async function checkHub(hub: Hub, known: { id: string; absent: string }): Promise<void> {
  assert.match(
    hub.name,
    /^[a-z][a-z0-9_-]*$/,
    'the name of a hub is recorded with each model: letters, digits, "-", "_"'
  )
  assert.ok(hub.title.length > 0, 'a hub has a title for people')
  assert.ok(hub.prefixes.length > 0, 'a hub has a prefix to ask for it, such as "folder:"')
  for (const prefix of hub.prefixes) assert.match(prefix, /[:/]$/, `the prefix "${prefix}" ends in its separator`)

  const repository: HubRepository = await hub.repository({ id: known.id }, {})
  assert.equal(repository.hub, hub.name, 'a repository names its hub')
  assert.ok(repository.revision.length > 0, 'a repository has a revision that names its content')
  assert.ok(repository.files.length > 0, 'a repository lists its files')
  assert.deepEqual(JSON.parse(JSON.stringify(repository)), repository, 'a repository is plain data')
  for (const { path, size, sha256 } of repository.files) {
    assert.ok(!path.startsWith('/') && !path.split('/').includes('..'), `the path "${path}" is relative`)
    assert.ok(
      size === undefined || (Number.isSafeInteger(size) && size >= 0),
      `the size of "${path}" is a count of bytes`
    )
    if (sha256 !== undefined) assert.match(sha256, /^[0-9a-f]{64}$/, `the digest of "${path}" has 64 hex digits`)
  }
  const again = await hub.repository({ id: known.id }, {})
  assert.equal(again.revision, repository.revision, 'the same content has the same revision')

  const file = repository.files[0]!
  const { url, headers } = await hub.locate(repository, file, new AbortController().signal)
  assert.match(new URL(url).protocol, /^https?:$/, 'files are located at addresses of http or https')
  const reply = await fetch(url, { headers: { ...headers, range: 'bytes=0-0' } })
  assert.ok(reply.ok, `the address of "${file.path}" answers (${reply.status})`)
  await reply.body?.cancel()

  await assert.rejects(hub.repository({ id: known.absent }, {}), { name: 'CorralError', code: 'repo_not_found' })
}

/**
 * Checks an engine on all surfaces: whole and streamed answers, `max_tokens` and `stop`, and that it ends when its model
 * is stopped.
 * @param model that it serves; the demo model by default
 */
export async function engineContract(
  plugin: PluginDefinition,
  options: { model?: string; config?: string } = {}
): Promise<void> {
  pluginContract(plugin)
  const { model = DEMO, config } = options
  await withCorral({ plugin, config, echo: false }, async (corral, { providers }) => {
    assert.ok(providers.length > 0, 'it adds a provider in its setup: context.service("engines").add(…)')
    for (const provider of providers) checkProvider(provider)
    const messages = [{ role: 'user', content: 'Hello there' }]
    const native = await answered(corral, '/api/chat', { model, messages, stream: false })
    assert.equal(typeof native.message.content, 'string', '/api/chat gives a text')
    const hosted = await answered(corral, '/v1/chat/completions', { model, messages })
    assert.equal(typeof hosted.choices[0].message.content, 'string', '/v1/chat/completions gives a text')
    const other = await answered(corral, '/v1/messages', { model, messages, max_tokens: 100 })
    assert.equal(other.content[0]?.type, 'text', '/v1/messages gives a text')
    const events = await corral.events('/v1/chat/completions', { model, messages, stream: true })
    assert.ok(
      events.some(event => event.choices?.[0]?.finish_reason),
      'a streamed answer says why it ended'
    )
    await checkLimits(corral, { model, messages, temperature: 0 })
    const { models } = await answered(corral, '/api/ps')
    assert.ok(models.length > 0, 'the model is listed as loaded')
    await answered(corral, '/api/stop', { model })
    assert.deepEqual((await answered(corral, '/api/ps')).models, [], 'a stopped engine has gone')
  })
}

/** Checks the request fields that corral leaves to engines and that every client relies on. */
async function checkLimits(corral: TestCorral, request: Record<string, unknown>): Promise<void> {
  const path = '/v1/chat/completions'
  const whole: string = (await answered(corral, path, request)).choices[0].message.content ?? ''
  const words = whole.split(/\s+/).filter(word => word !== '')
  const last = words.at(-1)
  if (last === undefined) return
  const short = await answered(corral, path, { ...request, max_tokens: 1 })
  assert.ok((short.usage?.completion_tokens ?? 0) <= 1, 'max_tokens: 1 gives one token at most')
  if (words.length > 1) {
    assert.ok((short.choices[0].message.content ?? '').length < whole.length, 'max_tokens: 1 makes the answer shorter')
    assert.equal(short.choices[0].finish_reason, 'length', 'an answer that max_tokens ends has the reason "length"')
  }
  const stopped = (await answered(corral, path, { ...request, stop: [last] })).choices[0]
  assert.ok(!stopped.message.content?.includes(last), `the answer ends before the text of "stop" (${last})`)
  assert.equal(stopped.finish_reason, 'stop', 'an answer that a text of "stop" ends has the reason "stop"')
  const events = await corral.events(path, { ...request, stop: [last], stream: true })
  const streamed = events.map(event => event.choices?.[0]?.delta?.content ?? '').join('')
  assert.ok(!streamed.includes(last), `a streamed answer ends before the text of "stop" (${last})`)
}

function checkProvider(provider: EngineProvider): void {
  assert.match(provider.name, /^[a-z][a-z0-9_-]*$/, 'the name of a provider holds letters, digits, "-" and "_"')
  for (const call of ['serves', 'start'] as const) assert.equal(typeof provider[call], 'function', `it has "${call}"`)
}

/**
 * Checks a surface: its routes answer, appear in the API document, and refuse an unknown model.
 * @param request the path and body of a request for the demo model
 */
export async function surfaceContract(
  plugin: PluginDefinition,
  request: { path: string; body: Record<string, unknown>; config?: string }
): Promise<void> {
  pluginContract(plugin)
  await withCorral({ plugin, config: request.config }, async corral => {
    await answered(corral, request.path, request.body)
    const refused = await corral.json(request.path, { ...request.body, model: 'nobody/nothing' })
    assert.equal(refused.status, 404, 'an unknown model gets 404')
    const document = await answered(corral, '/openapi.json')
    assert.ok(document.paths[request.path], `${request.path} appears in /openapi.json`)
  })
}

/**
 * Checks a filter: requests pass through it on all surfaces, whole and streamed, and no hook fails.
 * @param refused a text that it refuses, where it refuses any
 */
export async function filterContract(
  plugin: PluginDefinition,
  options: { refused?: string; config?: string } = {}
): Promise<void> {
  pluginContract(plugin)
  await withCorral({ plugin, config: options.config }, async corral => {
    const report = await corral.plugin(plugin.name)
    assert.equal(report?.state, 'active', report?.reason)
    assert.ok(
      report?.hooks.some(hook => hook === 'request' || hook === 'event'),
      'a filter offers the hook "request" or "event"'
    )
    const ask = (content: string) => ({ model: DEMO, messages: [{ role: 'user', content }] })
    await answered(corral, '/api/chat', { ...ask('Hello there'), stream: false })
    await answered(corral, '/v1/chat/completions', ask('Hello there'))
    await answered(corral, '/v1/messages', { ...ask('Hello there'), max_tokens: 100 })
    const events = await corral.events('/v1/chat/completions', { ...ask('Hello there'), stream: true })
    assert.ok(
      events.some(event => event.choices?.[0]?.finish_reason),
      'a streamed answer says why it ended'
    )
    if (options.refused === undefined) return
    for (const path of ['/api/chat', '/v1/chat/completions', '/v1/messages']) {
      const { status } = await corral.json(path, { ...ask(options.refused), max_tokens: 100 })
      assert.ok(status >= 400 && status < 500, `${path} refuses "${options.refused}" (${status})`)
    }
  })
}

async function withCorral(
  { plugin, config = '', echo }: { plugin: PluginDefinition; config?: string | undefined; echo?: boolean },
  use: (corral: TestCorral, added: Added) => Promise<void>
): Promise<void> {
  const watched = watchedPlugin(plugin)
  const corral = await startTestCorral({ plugins: [watched.plugin], config, ...(echo !== undefined && { echo }) })
  try {
    await use(corral, watched.added)
  } finally {
    await corral.close()
  }
}

async function answered(corral: TestCorral, path: string, body?: unknown): Promise<any> {
  const reply = await corral.json(path, body)
  assert.equal(reply.status, 200, `${path} answers 200: ${JSON.stringify(reply.body)}`)
  return reply.body
}
