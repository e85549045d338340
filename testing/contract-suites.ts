import assert from 'node:assert/strict'
import type { EngineProvider } from '../core/contracts/engines.ts'
import type { Hub, HubRepository } from '../core/contracts/hubs.ts'
import { definitionFault } from '../core/plugins/outside-plugins.ts'
import type { PluginDefinition } from '../core/plugins/plugin.ts'
import { startTestCorral, type TestCorral } from './test-corral.ts'

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
 * Checks a hub: what it lists, where it has files, and how it refuses what is not there.
 * @param known id of a repository that it has, and one that it has not
 */
export async function hubContract(hub: Hub, known: { id: string; absent: string }): Promise<HubRepository> {
  assert.match(
    hub.name,
    /^[a-z][a-z0-9_-]*$/,
    'the name of a hub is recorded with each model: letters, digits, "-", "_"'
  )
  assert.ok(hub.title.length > 0, 'a hub has a title for people')
  assert.ok(hub.prefixes.length > 0, 'a hub has a prefix to ask for it, such as "folder:"')
  for (const prefix of hub.prefixes) assert.match(prefix, /[:/]$/, `the prefix "${prefix}" ends in its separator`)

  const repository = await hub.repository({ id: known.id }, {})
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
  return repository
}

/**
 * Checks an engine on all surfaces: whole and streamed answers, and that it ends when its model is stopped.
 * @param model that it serves; the demo model by default
 */
export async function engineContract(
  plugin: PluginDefinition,
  options: { model?: string; config?: string } = {}
): Promise<void> {
  pluginContract(plugin)
  const { model = DEMO, config = '' } = options
  await withCorral({ plugins: [plugin], config, echo: false }, async corral => {
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
    const { models } = await answered(corral, '/api/ps')
    assert.ok(models.length > 0, 'the model is listed as loaded')
    await answered(corral, '/api/stop', { model })
    assert.deepEqual((await answered(corral, '/api/ps')).models, [], 'a stopped engine has gone')
  })
}

/** Checks what an engine's provider says of itself. */
export function providerContract(provider: EngineProvider): void {
  assert.match(provider.name, /^[a-z][a-z0-9_-]*$/, 'the name of a provider holds letters, digits, "-" and "_"')
  for (const call of ['serves', 'start'] as const) assert.equal(typeof provider[call], 'function', `it has "${call}"`)
}

/**
 * Checks a surface: its routes answer, stand in the API document, and refuse an unknown model in words.
 * @param request the path and body of a request for the demo model
 */
export async function surfaceContract(
  plugin: PluginDefinition,
  request: { path: string; body: Record<string, unknown>; config?: string }
): Promise<void> {
  pluginContract(plugin)
  await withCorral({ plugins: [plugin], config: request.config ?? '' }, async corral => {
    await answered(corral, request.path, request.body)
    const refused = await corral.json(request.path, { ...request.body, model: 'nobody/nothing' })
    assert.equal(refused.status, 404, 'an unknown model gets 404')
    const document = await answered(corral, '/openapi.json')
    assert.ok(document.paths[request.path], `${request.path} stands in /openapi.json`)
  })
}

/**
 * Checks a filter: requests pass through it on all surfaces, whole and streamed, and nothing of it fails.
 * @param refused a text that it refuses, where it refuses any
 */
export async function filterContract(
  plugin: PluginDefinition,
  options: { refused?: string; config?: string } = {}
): Promise<void> {
  pluginContract(plugin)
  await withCorral({ plugins: [plugin], config: options.config ?? '' }, async corral => {
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
  options: Parameters<typeof startTestCorral>[0],
  use: (corral: TestCorral) => Promise<void>
): Promise<void> {
  const corral = await startTestCorral(options)
  try {
    await use(corral)
  } finally {
    await corral.close()
  }
}

async function answered(corral: TestCorral, path: string, body?: unknown): Promise<any> {
  const reply = await corral.json(path, body)
  assert.equal(reply.status, 200, `${path} answers 200: ${JSON.stringify(reply.body)}`)
  return reply.body
}
