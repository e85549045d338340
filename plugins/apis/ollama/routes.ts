import type { FastifyInstance, FastifyPluginAsync, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import type { Catalog, Model } from '../../../core/contracts/models.ts'
import type { ModelNaming, NativeApi } from '../../../core/contracts/native-api.ts'
import { CorralError, type ErrorCode } from '../../../core/errors.ts'
import { sendErrors } from '../../../core/http/error-format.ts'
import { nativeErrorBody } from '../../../core/http/native-error.ts'
import { Loose } from '../../../core/http/request-fields.ts'
import { reroute } from '../../../core/http/reroute.ts'
import { json, nativeRouter } from '../../../core/http/response-schemas.ts'
import { bareName, type ModelName, NO_OWNER, parseRequestedName } from '../../../core/models/model-name.ts'
import { modelfileText } from './models/create-request.ts'

/**
 * The version that `/api/version` reports: the Ollama release whose command line and API this is tested against.
 * Clients compare it with the release that introduced what they need (VS Code needs at least 0.6.4) and parse each part
 * as an integer, so it must be a plain release number.
 */
export const OLLAMA_VERSION = '0.17.4'

const PREFIX = '/ollama'

export async function ollamaRoutes(
  app: FastifyInstance,
  nativeApi: NativeApi,
  naming: ModelNaming,
  making: FastifyPluginAsync
): Promise<void> {
  tagAsOllama(app)
  const route = nativeRouter(app, 'Ollama')
  sendErrors(app, (error, request) => nativeErrorBody(withOllamaMessage(error, request.body), request))
  route(`GET ${PREFIX}`, 'ollamaRoot', "Check that Ollama's API is available", {
    role: 'anyone',
    response: { description: 'It is available', content: { 'text/plain': { schema: Type.String() } } },
    handler: async (_request, reply) => reply.type('text/plain; charset=utf-8').send('Ollama is running')
  })
  route(`GET ${PREFIX}/api/status`, 'ollamaStatus', "Show that Ollama's cloud models are disabled", {
    response: json('Disabled', Loose({ cloud: Loose({ disabled: Type.Literal(true), source: Type.String() }) })),
    handler: async () => ({ cloud: { disabled: true, source: 'corral' } })
  })
  for (const [path, operationId, summary] of [
    ['me', 'ollamaMe', 'Show the account at ollama.com (there is none)'],
    ['signout', 'ollamaSignout', 'Sign out of ollama.com (there is none)']
  ] as const) {
    route(`POST ${PREFIX}/api/${path}`, operationId, summary, { errors: ['not_implemented'], handler: noAccount })
  }
  await app.register(
    async scope => {
      scope.addHook('preHandler', async request => refuseTemplate(request))
      await scope.register(
        nativeApi.routes({
          defaultFraming: 'ndjson',
          naming,
          truncates: true,
          givesContext: true,
          version: OLLAMA_VERSION,
          modelfile: variant => modelfileText(variant, naming.shown(variant))
        })
      )
      await scope.register(making)
    },
    { prefix: `${PREFIX}/api` }
  )
  // Some clients use one base address for both APIs. The second route checks the role.
  reroute(app, {
    method: app.supportedMethods,
    url: `${PREFIX}/v1/*`,
    as: url => url.slice(PREFIX.length),
    config: { role: 'anyone' },
    schema: { hide: true }
  })
}

/** Prepends Ollama's own message, which clients search for. */
export function withOllamaMessage(failure: CorralError, body: unknown): CorralError {
  const { code, message } = failure
  const ollamas = typeof body === 'object' && body !== null && ollamaMessage(code, body as Record<string, unknown>)
  return ollamas ? failure.reworded(`${ollamas}. ${message}`) : failure
}

function ollamaMessage(code: ErrorCode, body: Record<string, unknown>): string | undefined {
  const { from, found, model, name, source, input, truncate } = body
  if (code === 'context_exceeded') {
    const cut = input !== undefined && truncate !== false
    return cut ? 'input after truncation exceeds maximum context length' : 'the input length exceeds the context length'
  }
  if (code !== 'model_not_found') return undefined
  // When a model is created from a missing one, the missing source is named, not the new model.
  const missing = [found === undefined && from, model, name, source].find(
    text => typeof text === 'string' && text !== ''
  )
  return missing === undefined ? undefined : `model '${missing}' not found`
}

async function noAccount(): Promise<never> {
  const message =
    'corral does not support accounts at ollama.com: it can neither push models there nor run its cloud models.'
  throw new CorralError('not_implemented', message)
}

/** @throws CorralError if a request has its own template, which would otherwise be ignored silently */
function refuseTemplate(request: FastifyRequest): void {
  if (!/\/(?:chat|generate)$/.test(request.routeOptions.url ?? '')) return
  const { template } = (request.body ?? {}) as { template?: unknown }
  if (template === undefined || template === null || template === '') return
  throw new CorralError(
    'invalid_request',
    'A request cannot have its own template. Create a model with the template (POST /api/create with "from" and "template"), ' +
      'or send the finished prompt with "raw": true.',
    { param: 'template' }
  )
}

/** Documents the native routes that are registered after this call as Ollama routes, with ids such as `ollamaChat`. */
function tagAsOllama(app: FastifyInstance): void {
  app.addHook('onRoute', route => {
    const { operationId: id, ...schema } = route.schema ?? {}
    if (!id) return
    const operationId = id.startsWith('ollama') ? id : `ollama${id[0]!.toUpperCase()}${id.slice(1)}`
    route.schema = { ...schema, tags: ['Ollama'], operationId }
  })
}

/**
 * Maps a path at the Ollama listener to a path of the server: `/v1` is the OpenAI API, as in Ollama, and everything
 * else is below `/ollama`.
 * @param url the URL in the request line, which proxies send with scheme and host
 */
export function mapListenerPath(url: string): string {
  const path = url.replace(/^https?:\/\/[^/?#]*/i, '')
  return /^\/v1(?:[/?]|$)/.test(path) ? path : `${PREFIX}${path}`
}

/** Prefixes that Ollama's clients put before names: its registry, and the default owner there. */
const REGISTRY = /^(?:(?:https?:\/\/)?(?:registry\.ollama\.ai|ollama\.com)\/)?(?:library\/)?/i

export function ollamaNaming(catalog: Pick<Catalog, 'find' | 'variants' | 'listedNames'>): ModelNaming {
  return {
    // A program that pulled "qwen3:0.6b" looks for this name.
    shown: variant => catalog.listedNames(variant).at(-1) ?? displayName(variant),
    shownAlias: alias => (alias.includes(':') ? alias : `${alias}:latest`),
    plainDetails: true,
    toCreate: newName,
    toDelete: name => nameToDelete(name, catalog),
    atHub: requested => atHub(requested, catalog)
  }
}

/** The displayed name without an Ollama library name. It has a tag, because clients append `:latest` to other names. */
export function displayName({ model: { owner, name }, isDefault, label, origin }: Model): string {
  const tag = isDefault && origin.tag === undefined ? 'latest' : label
  return owner.toLowerCase() === NO_OWNER ? `${name}:${tag}` : `${owner}/${name}:${tag}`
}

/** Returns the name of a new model, with the default owner if needed. @throws CorralError `invalid_model_name` */
export function newName(requested: unknown): ModelName {
  const name = parseRequestedName(requested)
  return { ...name, owner: name.owner ?? NO_OWNER }
}

/**
 * Returns the single model to delete: the one displayed under this name, or only its unfinished pull.
 * @throws CorralError `model_not_found` if a name without a tag only matches models that were created under a tag
 */
function nameToDelete(name: ModelName, catalog: Pick<Catalog, 'variants'>): ModelName {
  const [first] = catalog.variants(name)
  if (name.variant !== undefined || !first) return name
  if (first.origin.tag === undefined) return first.model
  const message = `There is no model "${bareName(name)}:latest" here, only ${displayName(first)}.`
  throw new CorralError('model_not_found', message, { param: 'model' })
}

/** Returns the name that a pull sends to the hubs, or undefined if the model is here and did not come from a hub. */
function atHub(requested: string, catalog: Pick<Catalog, 'find'>): string | undefined {
  const text = requested.trim()
  const present = storedUnder(text, catalog)
  return present && present.origin.kind !== 'hub' ? undefined : text.replace(REGISTRY, '')
}

/** Finds the model that the text of a pull names. Texts that are not plain names, such as URLs, match none. */
function storedUnder(text: string, catalog: Pick<Catalog, 'find'>): Model | undefined {
  try {
    return catalog.find(parseRequestedName(text))
  } catch (error) {
    if (error instanceof CorralError) return undefined
    throw error
  }
}
