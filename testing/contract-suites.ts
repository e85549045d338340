import assert from 'node:assert/strict'
import type { EngineMode, EngineProvider } from '../core/contracts/engines.ts'
import type { Catalog } from '../core/contracts/models.ts'
import { definitionFault } from '../core/plugins/outside-plugins.ts'
import { definePlugin, type PluginDefinition } from '../core/plugins/plugin.ts'
import { checkAnswers, checkEnd, checkFacts, checkLists, checkOperations, checkTokens } from './engine-contract.ts'
import { checkHub } from './hub-contract.ts'
import { Steps, shown } from './steps.ts'
import { checkRules, withModel } from './surface-contract.ts'
import { startTestCorral, type TestCorral } from './test-corral.ts'
import { type Added, watchedPlugin } from './watched-plugin.ts'

const DEMO = 'corral/tiny-chat'
const MODES: readonly EngineMode[] = ['chat', 'embedding', 'rerank']

interface ContractOptions {
  /** Additional text for the config.yaml of the test. */
  config?: string | undefined
  /** Milliseconds that each step may take; 30 s by default. */
  timeout?: number
}

/** Checks the requirements of every plugin. */
export function pluginContract(plugin: unknown): void {
  assert.equal(definitionFault(plugin), undefined)
  const { name } = plugin as PluginDefinition
  assert.match(
    name,
    /^[a-z][a-z0-9_-]*$/,
    'a name has only lower-case letters, digits, "-" and "_", and starts with a letter'
  )
}

/**
 * Checks the hubs that a plugin adds in its setup: their listings, the locations of their files, and their errors for
 * missing or forbidden models and unreachable servers. To test these, connections that the hub opens are made to fail.
 * @param options `id` of a repository that it has, one that is `absent`, and one that is `gated` if it has any
 */
export async function hubContract(
  plugin: PluginDefinition,
  options: { id: string; absent: string; gated?: string } & ContractOptions
): Promise<void> {
  await withCorral({ plugin, ...options }, async (_, { hubs }, steps) => {
    assert.ok(hubs.length > 0, 'it adds a hub in its setup: context.service("downloads").addHub(…)')
    for (const hub of hubs) await checkHub(steps, hub, options)
  })
}

/**
 * Checks an engine: its properties, its answers, that it ends when it is aborted or stopped, and its answers in all
 * APIs, with `max_tokens` and `stop`.
 * @param model that it serves; the demo model by default
 */
export async function engineContract(
  plugin: PluginDefinition,
  options: { model?: string } & ContractOptions = {}
): Promise<void> {
  const { model = DEMO } = options
  await withCorral({ plugin, ...options, echo: false }, async (corral, { providers, engines }, steps, catalog) => {
    assert.ok(providers.length > 0, 'it adds a provider in its setup: context.service("engines").add(…)')
    for (const provider of providers) checkProvider(provider, catalog)
    await steps.answered(corral, '/api/load', { model, stream: false })
    const [engine] = engines
    assert.ok(engine, `it starts an engine for ${model}`)
    const provider = providers.find(({ name }) => name === engine.provider)
    assert.ok(provider, `an engine names its provider, but "${engine.provider}" is not a provider of this plugin`)
    checkFacts(engine, provider)
    const requireQuiet = engine.chat && (await checkAnswers(steps, engine))
    await checkTokens(steps, engine)
    if (engine.chat) await checkSurfaces(steps, corral, model)
    await checkOperations(steps, corral, engine, model)
    for (const mode of MODES.slice(1)) {
      const score = provider.serves(engine.spec.variant, mode)
      if (score <= 0) continue
      const [path, body, method] =
        mode === 'embedding'
          ? (['/v1/embeddings', { input: 'one' }, 'embed'] as const)
          : (['/v1/rerank', { query: 'a', documents: ['b'] }, 'rerank'] as const)
      const reply = await steps.run(path, () => corral.json(path, { model, ...body }))
      const isUnable = reply.body?.error?.code === 'unsupported_capability'
      assert.ok(!isUnable, `"serves" returns ${score} for the mode "${mode}", but the engine has no "${method}"`)
      // The engine itself tells more than a reply of 500.
      await checkLists(steps, engines.findLast(({ spec }) => spec.mode === mode) ?? engine)
      steps.requireAnswer(corral, path, reply)
    }
    requireQuiet?.()
    await checkEnd(steps, provider, engines)
    const { models } = await steps.answered(corral, '/api/ps')
    assert.ok(models.length > 0, 'the model is listed as loaded')
    await steps.answered(corral, '/api/stop', { model })
    assert.deepEqual((await steps.answered(corral, '/api/ps')).models, [], 'a stopped engine is no longer listed')
    for (const engine of engines) await steps.run('"exited" after /api/stop', () => engine.exited)
  })
}

/** Checks whole and streamed answers of the APIs that clients use. */
async function checkSurfaces(steps: Steps, corral: TestCorral, model: string): Promise<void> {
  const messages = [{ role: 'user', content: 'Hello there' }]
  const native = await steps.answered(corral, '/api/chat', { model, messages, stream: false })
  assert.equal(typeof native.message.content, 'string', '/api/chat returns a text')
  const hosted = await steps.answered(corral, '/v1/chat/completions', { model, messages })
  assert.equal(typeof hosted.choices[0].message.content, 'string', '/v1/chat/completions returns a text')
  const other = await steps.answered(corral, '/v1/messages', { model, messages, max_tokens: 100 })
  assert.equal(other.content[0]?.type, 'text', '/v1/messages returns a text')
  await requireFinish(steps, corral, { model, messages })
  await checkLimits(steps, corral, { model, messages, temperature: 0 })
}

async function requireFinish(steps: Steps, corral: TestCorral, request: object): Promise<void> {
  const events = await steps.events(corral, '/v1/chat/completions', { ...request, stream: true })
  assert.ok(
    events.some(event => event.choices?.[0]?.finish_reason),
    'a streamed answer says why it ended'
  )
}

/** Checks the request fields that corral leaves to engines and that every client relies on. */
async function checkLimits(steps: Steps, corral: TestCorral, request: Record<string, unknown>): Promise<void> {
  const path = '/v1/chat/completions'
  const answered = (body: object) => steps.answered(corral, path, body)
  const whole: string = (await answered(request)).choices[0].message.content ?? ''
  const words = whole.split(/\s+/).filter(word => word !== '')
  const last = words.at(-1)
  if (last === undefined) return
  const short = await answered({ ...request, max_tokens: 1 })
  assert.ok((short.usage?.completion_tokens ?? 0) <= 1, 'max_tokens: 1 returns at most one token')
  if (words.length > 1) {
    assert.ok((short.choices[0].message.content ?? '').length < whole.length, 'max_tokens: 1 makes the answer shorter')
    assert.equal(short.choices[0].finish_reason, 'length', 'an answer that max_tokens ends has the reason "length"')
  }
  const several = await steps.run(path, () => corral.json(path, { ...request, n: 2 }))
  if (several.status < 400 || several.status >= 500) {
    assert.equal(several.status, 200, `n: 2 is answered or refused: ${JSON.stringify(several.body)}`)
    const texts = several.body.choices.map((choice: any) => choice.message?.content)
    assert.equal(texts.length, 2, `n: 2 generates two choices, not ${texts.length}`)
    assert.ok(texts.every(Boolean), `n: 2 generates two answers, not ${shown(texts)}`)
  }
  const stopped = (await answered({ ...request, stop: [last] })).choices[0]
  assert.ok(!stopped.message.content?.includes(last), `the answer ends before the text of "stop" (${last})`)
  assert.equal(stopped.finish_reason, 'stop', 'an answer that a text of "stop" ends has the reason "stop"')
  const events = await steps.events(corral, path, { ...request, stop: [last], stream: true })
  const streamed = events.map(event => event.choices?.[0]?.delta?.content ?? '').join('')
  assert.ok(!streamed.includes(last), `a streamed answer ends before the text of "stop" (${last})`)
}

function checkProvider(provider: EngineProvider, catalog: Catalog): void {
  assert.match(provider.name, /^[a-z][a-z0-9_-]*$/, 'the name of a provider has only letters, digits, "-" and "_"')
  for (const call of ['serves', 'start'] as const) assert.equal(typeof provider[call], 'function', `it has "${call}"`)
  const { knownOptions } = provider
  const isSet = knownOptions === undefined || (knownOptions as unknown) instanceof Set
  assert.ok(isSet, `"knownOptions" is a Set of names, not ${shown(knownOptions)}`)
  for (const model of catalog.list()) {
    for (const mode of MODES) {
      let score: unknown
      assert.doesNotThrow(() => {
        score = provider.serves(model, mode)
      }, `"serves" does not throw for ${model.publicName} in the mode "${mode}"`)
      assert.ok(Number.isFinite(score), `"serves" returns a number for ${model.publicName} in the mode "${mode}"`)
    }
  }
}

/**
 * Checks an API: its routes answer, appear in the API document, and refuse an unknown model. If it uses engines, then
 * filters, aliases, keys, limits, budgets and usage must apply to it as to every API; `context.answer` takes care of
 * that.
 * @param request the path and body of a request for the demo model, whose name is in `model` or another field
 */
export async function surfaceContract(
  plugin: PluginDefinition,
  request: { path: string; body: Record<string, unknown> } & ContractOptions
): Promise<void> {
  await withCorral({ plugin, ...request }, async (corral, _, steps) => {
    await steps.answered(corral, request.path, request.body)
    const unknown = withModel(request.body, 'nobody/nothing')
    const refused = await steps.run('an unknown model', () => corral.json(request.path, unknown))
    assert.equal(refused.status, 404, `an unknown model gets 404, not ${refused.status}`)
    const document = await steps.answered(corral, '/openapi.json')
    assert.ok(document.paths[request.path], `${request.path} appears in /openapi.json`)
  })
  await checkRules(new Steps(request.timeout), plugin, request)
}

/**
 * Checks a filter: requests pass through it in all APIs, whole and streamed, and no hook fails.
 * @param refused a text that it refuses, if any
 */
export async function filterContract(
  plugin: PluginDefinition,
  options: { refused?: string } & ContractOptions = {}
): Promise<void> {
  await withCorral({ plugin, ...options }, async (corral, _, steps) => {
    const report = await corral.plugin(plugin.name)
    assert.ok(
      report?.hooks.some(hook => hook === 'request' || hook === 'event'),
      'a filter offers the hook "request" or "event"'
    )
    const ask = (content: string) => ({ model: DEMO, messages: [{ role: 'user', content }] })
    const hello = ask('Hello there')
    await steps.answered(corral, '/api/chat', { ...hello, stream: false })
    await steps.answered(corral, '/v1/chat/completions', hello)
    await steps.answered(corral, '/v1/messages', { ...hello, max_tokens: 100 })
    await requireFinish(steps, corral, hello)
    if (options.refused === undefined) return
    for (const path of ['/api/chat', '/v1/chat/completions', '/v1/messages']) {
      const request = { ...ask(options.refused), max_tokens: 100 }
      const { status } = await steps.run(path, () => corral.json(path, request))
      assert.ok(status >= 400 && status < 500, `${path} refuses "${options.refused}" (${status})`)
    }
  })
}

async function withCorral(
  { plugin, config = '', timeout, echo }: { plugin: PluginDefinition; echo?: boolean } & ContractOptions,
  use: (corral: TestCorral, added: Added, steps: Steps, catalog: Catalog) => Promise<void>
): Promise<void> {
  pluginContract(plugin)
  const steps = new Steps(timeout)
  const ended = new AbortController()
  const { plugin: watched, added } = watchedPlugin(plugin, ended.signal)
  const bounded: PluginDefinition = {
    ...watched,
    async setup(context, options) {
      const offer = await steps.limit('setup', () => watched.setup(context, options))
      return offer?.start ? { ...offer, start: () => steps.limit('start', () => offer.start!()) } : offer
    }
  }
  let catalog: Catalog | undefined
  const reader = definePlugin({
    name: 'contract-reader',
    api: 1,
    needs: ['catalog'],
    setup(context) {
      catalog = context.service('catalog')
      return {}
    }
  })
  // A hook that never ends fails its request in time, with an error that names it.
  const limits = /^limits:/m.test(config) ? '' : `\nlimits: { hook_timeout: ${steps.timeout / 2000} }`
  const corral = await startTestCorral({
    plugins: [bounded, reader],
    config: config + limits,
    ...(echo !== undefined && { echo })
  })
  try {
    const report = await corral.plugin(plugin.name)
    assert.ok(report?.state === 'active', report?.reason ?? `the plugin "${plugin.name}" is not active`)
    await use(corral, added, steps, catalog!)
  } finally {
    ended.abort(new Error('the contract has been checked'))
    await corral.close()
  }
}
