import { definePlugin, type Hub, type HubFile, type PluginContext } from 'corral/plugin'

interface Options {
  address: string
  owner: string
}

interface Layer {
  mediaType: string
  digest: string
  size: number
}

/** Kinds of layers, in the media types of Docker's models and of ollama.com, and the names that corral knows. */
const KINDS: readonly [type: RegExp, name: (label: string, mediaType: string) => string][] = [
  [/docker\.ai\.(?:gguf\.)?mmproj|ollama\.image\.projector/, label => `mmproj-${label}.gguf`],
  [/docker\.ai\.gguf|ollama\.image\.model$/, label => `${label}.gguf`],
  [/chat\.template\.jinja/, () => 'chat_template.jinja'],
  [/(?:image|docker\.ai)\.license/, () => 'LICENSE'],
  [/ollama\.image\.(?:template|system|params)$/, (_, mediaType) => mediaType.split('.').at(-1)!]
]

const MANIFESTS = 'application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json'
/** Manifests and configurations are small. */
const MAX_JSON_BYTES = 4 * 2 ** 20

/** Models in a registry of container images: `oci:owner/name:tag`, also with more than two parts. */
function createHub({ error }: Pick<PluginContext, 'error'>, { address, owner }: Options): Hub {
  /** Credentials by repository, as the registry has issued them, and when they end. */
  const tokens = new Map<string, { authorization: string; ends: number }>()

  async function send(url: string, headers: Record<string, string>, signal?: AbortSignal): Promise<Response> {
    const reply = await fetch(url, { headers, redirect: 'manual', ...(signal && { signal }) }).catch(() => undefined)
    signal?.throwIfAborted()
    if (reply) return reply
    throw error('hub_unreachable', `${new URL(url).origin} cannot be reached. Try again later.`)
  }

  async function json<Value>(reply: Response): Promise<Value> {
    let text = ''
    for await (const chunk of reply.body?.pipeThrough(new TextDecoderStream()) ?? []) {
      text += chunk
      if (text.length > MAX_JSON_BYTES) break
    }
    try {
      return JSON.parse(text)
    } catch {
      throw error('hub_unreachable', `${address} returned an invalid answer. Try again later.`)
    }
  }

  /** Gets a token as `WWW-Authenticate: Bearer realm="…",service="…",scope="…"` says. */
  async function issueToken(id: string, challenge: string, signal?: AbortSignal): Promise<void> {
    const read = (name: string) => new RegExp(`\\b${name}="([^"]*)"`).exec(challenge)?.[1]
    const realm = read('realm')
    if (!/^bearer /i.test(challenge) || realm === undefined || !URL.canParse(realm)) return
    const url = new URL(realm)
    url.searchParams.set('service', read('service') ?? url.host)
    url.searchParams.set('scope', read('scope') ?? `repository:${id}:pull`)
    const reply = await send(url.href, {}, signal)
    if (!reply.ok) return
    type Issued = { token?: string; access_token?: string; expires_in?: number }
    const { token, access_token = token, expires_in: seconds = 60 } = await json<Issued>(reply)
    tokens.set(id, { authorization: `Bearer ${access_token}`, ends: performance.now() + (seconds - 5) * 1000 })
  }

  /** Sends a request, with a token if the registry asks for one. @throws CorralError if the registry refuses it */
  async function ask(id: string, path: string, more: Record<string, string>, signal?: AbortSignal) {
    const url = `${address}/v2/${id}/${path}`
    for (let tries = 0; ; tries++) {
      const { authorization, ends = 0 } = tokens.get(id) ?? {}
      const headers: Record<string, string> = authorization && ends > performance.now() ? { authorization } : {}
      const reply = await send(url, { ...headers, ...more }, signal)
      const { status } = reply
      if (status < 400) return { url, headers, reply }
      await reply.body?.cancel()
      const challenge = reply.headers.get('www-authenticate')
      if (status === 401 && challenge !== null && tries === 0) await issueToken(id, challenge, signal)
      else if (status === 404) throw error('repo_not_found', `There is no ${id} (${path}) at ${address}.`)
      else if (status === 401 || status === 403) throw error('hub_forbidden', `${address} refuses access to ${id}.`)
      else throw error('hub_unreachable', `${address} answered ${status}. Try again later.`)
    }
  }

  return {
    name: 'oci',
    title: 'The OCI registry',
    prefixes: ['oci:'],
    parse(text) {
      const [, path = '', tag] = /^([^:@]+)(?::([^:@]+))?$/.exec(text) ?? []
      const [first = '', ...rest] = path.includes('/') ? path.split('/') : [owner, path]
      if ([first, ...rest].some(part => !/^[A-Za-z0-9][\w.-]*$/.test(part))) return undefined
      // corral's names have two parts.
      return { id: [first, ...rest].join('/'), name: `${first}/${rest.join('-')}`, ...(tag && { revision: tag }) }
    },
    async repository({ id, revision = 'latest' }, { signal }) {
      const { reply } = await ask(id, `manifests/${revision}`, { accept: MANIFESTS }, signal)
      const { layers = [], config } = await json<{ layers?: Layer[]; config: Layer }>(reply)
      type About = { config?: { quantization?: string }; file_type?: string }
      const about = await json<About>((await ask(id, `blobs/${config.digest}`, {}, signal)).reply)
      const [quantization] = /(?:I?Q\d|B?F\d)\w*$/.exec(about.config?.quantization ?? about.file_type ?? '') ?? []
      const label = [id.split('/').at(-1), quantization].filter(Boolean).join('-')
      const files = layers.flatMap(({ mediaType, digest, size }): HubFile[] => {
        const [, name] = KINDS.find(([type]) => type.test(mediaType)) ?? []
        return name ? [{ path: name(label, mediaType), size, sha256: digest.replace('sha256:', '') }] : []
      })
      // The manifest's digest identifies the content of a tag.
      const digest = reply.headers.get('docker-content-digest') ?? config.digest
      return { hub: 'oci', id, revision: digest, address: `${address}/${id}`, gated: false, files }
    },
    async locate({ id }, { sha256, size }, signal) {
      // A GET, because the addresses that registries redirect to are signed for this method.
      const { url, headers, reply } = await ask(id, `blobs/sha256:${sha256}`, { range: 'bytes=0-0' }, signal)
      await reply.body?.cancel()
      const target = reply.headers.get('location')
      // The other server must not get the token.
      return target === null ? { url, headers, size } : { url: new URL(target, url).href, headers: {}, size }
    }
  }
}

export default definePlugin<Options>({
  name: 'oci-hub',
  api: 1,
  description: "Models in an OCI registry, such as Docker Hub's or ollama.com's (oci:owner/name:tag)",
  optional: true,
  needs: ['downloads'],
  options: {
    type: 'object',
    properties: {
      address: { type: 'string', default: 'https://registry-1.docker.io', description: 'Address of the registry' },
      owner: { type: 'string', default: 'ai', description: 'Owner of names without one; "library" at ollama.com' }
    },
    additionalProperties: false
  },
  setup(context, options) {
    context.service('downloads').addHub(createHub(context, options))
    return {}
  }
})
