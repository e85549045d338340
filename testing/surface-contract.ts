import assert from 'node:assert/strict'
import { parse, stringify } from 'yaml'
import type { HookedRequest } from '../core/contracts/hooks.ts'
import { definePlugin, type PluginDefinition } from '../core/plugins/plugin.ts'
import { EchoEngine } from './echo-engine.ts'
import type { Steps } from './steps.ts'
import { startTestCorral, type TestCorral } from './test-corral.ts'

const ADMIN = { authorization: 'Bearer an-admin-of-the-surface-contract' }
const ALIAS = 'surface-contract/alias'
const MAX_TOKENS = 3

/** Records the requests to the test's engines and filter, and controls the filter. */
class Probe {
  /** `max_tokens` of each request that reached an engine. */
  readonly asked: unknown[] = []
  readonly filtered: HookedRequest[] = []
  events = 0
  refuses = false

  readonly plugin: PluginDefinition = definePlugin({
    name: 'surface-contract',
    api: 1,
    needs: ['engines'],
    setup: context => {
      const { asked } = this
      class ProbedEngine extends EchoEngine {
        override chat(...values: Parameters<EchoEngine['chat']>) {
          asked.push(values[0].max_tokens)
          return super.chat(...values)
        }
        override completion(...values: Parameters<EchoEngine['completion']>) {
          asked.push(values[0].max_tokens)
          return super.completion(...values)
        }
        override embed(...values: Parameters<EchoEngine['embed']>) {
          asked.push(undefined)
          return super.embed(...values)
        }
      }
      context.service('engines').add({
        name: 'surface-contract',
        serves: (_, mode) => (mode === 'chat' || mode === 'embedding' ? 1_000_000 : 0),
        start: async spec => new ProbedEngine(spec, 'surface-contract')
      })
      return {
        on: {
          request: request => {
            this.filtered.push(request)
            if (this.refuses) throw context.error('invalid_request', 'The filter of the contract refuses everything.')
          },
          event: () => {
            this.events++
          }
        }
      }
    }
  })
}

interface SurfaceRequest {
  path: string
  body: Record<string, unknown>
  config?: string | undefined
}

/** The model that a request names: in the field `model`, or the demo model wherever it is named. */
const modelOf = ({ model }: Record<string, unknown>) => (typeof model === 'string' ? model : 'corral/tiny-chat')

/** Returns the body of a request for another model. @throws AssertionError if it names none */
export function withModel(body: Record<string, unknown>, name: string): Record<string, unknown> {
  const model = JSON.stringify(modelOf(body))
  const text = JSON.stringify(body)
  assert.ok(text.includes(model), `the body names the model ${model}, in "model" or in another field`)
  return JSON.parse(text.replaceAll(model, JSON.stringify(name)))
}

/**
 * Checks that an API's requests to models follow the rules of all APIs: filters, aliases, the models and limits of
 * keys, budgets, usage. An API that does not use engines need not follow them.
 */
export async function checkRules(steps: Steps, plugin: PluginDefinition, request: SurfaceRequest): Promise<void> {
  const probe = new Probe()
  const { path, body } = request
  const model = modelOf(body)
  await withRules(probe, plugin, request, {}, async corral => {
    const ask = (asked = body, headers: Record<string, string> = ADMIN) =>
      steps.run(path, () => corral.json(path, asked, headers))
    const { status, body: answer } = await ask()
    assert.equal(status, 200, `${path} answers 200: ${JSON.stringify(answer)}`)
    if (probe.asked.length === 0) return
    const { status: open } = await ask(body, {})
    assert.equal(open, 401, `a request without a key is refused with 401, not ${open}`)
    assert.ok(probe.filtered.length > 0, 'requests pass through the hook "request" of filters')
    const { operation, caller } = probe.filtered[0]!
    assert.ok(caller?.name, 'filters see the caller of a request, with the name of its key')
    if (operation === 'chat' || operation === 'completion') {
      assert.ok(probe.events > 0, 'answers pass through the hook "event" of filters')
      const [most] = probe.asked
      const within = typeof most === 'number' && most >= 0 && most <= MAX_TOKENS
      assert.ok(within, `limits.max_tokens (${MAX_TOKENS}) applies; the engine was asked for ${most} tokens`)
    }
    const usage = await steps.run('/api/usage', () => corral.json('/api/usage', undefined, ADMIN))
    assert.match(JSON.stringify(usage.body), /"tokens_in":[1-9]/, "a key's use of models is in its usage")

    assert.equal((await ask(withModel(body, ALIAS))).status, 200, `an alias of ${model} can be requested too`)

    const made = { name: 'other-models', models: ['nobody/nothing'] }
    const { body: key } = await steps.run('/api/keys', () => corral.json('/api/keys', made, ADMIN))
    const forbidden = await ask(body, { authorization: `Bearer ${key.key}` })
    assert.equal(forbidden.status, 403, `a key that allows only other models is refused (${forbidden.status})`)

    probe.refuses = true
    const before = probe.asked.length
    const refused = await ask()
    assert.ok(
      refused.status >= 400 && refused.status < 500,
      `a request that a filter refuses is refused (${refused.status})`
    )
    assert.equal(probe.asked.length, before, 'no engine gets a request that a filter refuses')
  })
  if (probe.asked.length === 0) return
  await withRules(new Probe(), plugin, request, { requests_per_minute: 1 }, async corral => {
    const ask = () => steps.run(path, () => corral.json(path, body, ADMIN))
    assert.equal((await ask()).status, 200, 'the first request of a minute is within a budget of one')
    const second = await ask()
    assert.equal(second.status, 429, `limits.requests_per_minute applies (${second.status})`)
  })
}

async function withRules(
  probe: Probe,
  plugin: PluginDefinition,
  { body, config = '' }: SurfaceRequest,
  limits: Record<string, number>,
  use: (corral: TestCorral) => Promise<void>
): Promise<void> {
  const settings = parse(config) ?? {}
  settings.limits = { ...settings.limits, max_tokens: MAX_TOKENS, ...limits }
  settings.models = { ...settings.models, [modelOf(body)]: { aliases: [ALIAS] } }
  settings.security = { api_keys: [ADMIN.authorization.slice('Bearer '.length)] }
  const corral = await startTestCorral({ plugins: [plugin, probe.plugin], config: stringify(settings) })
  try {
    await use(corral)
  } finally {
    await corral.close()
  }
}
