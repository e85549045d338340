import { homedir } from 'node:os'
import { join } from 'node:path'
import { CorralError } from '../../../core/errors.ts'
import { createHfLikeHub } from './hf-like.ts'
import { hubPlugin, publicHubAccess, publicHubOptions } from './hub-options.ts'

const HOSTS = ['huggingface.co', 'hf.co']
const FIELDS = ['downloads', 'likes', 'lastModified', 'gated', 'tags', 'pipeline_tag']
const HUB = { usual: 'https://huggingface.co', variable: 'HF_ENDPOINT' }

export default hubPlugin(
  'huggingface',
  'Models from Hugging Face (hf:owner/name)',
  publicHubOptions(HUB, 'HF_TOKEN, or the token that "hf auth login" stored'),
  (context, options) => {
    const { env } = process
    const tokens = tokenSources(env)
    const access = publicHubAccess(context, options, { ...HUB, title: 'Hugging Face', hosts: HOSTS, tokens })
    return createHfLikeHub({
      ...access,
      name: 'huggingface',
      prefixes: ['hf:', ...['', 'https://', 'http://'].flatMap(scheme => HOSTS.map(host => `${scheme}${host}/`))],
      send: async outgoing => {
        const variable = offlineVariable(env)
        if (variable === undefined) return await access.send(outgoing)
        throw new CorralError(
          'hub_unreachable',
          `Hugging Face is not used because ${variable} is set to ${env[variable]}. Unset it to download models.`
        )
      },
      proxy: options.proxy,
      pathPrefix: '',
      defaultBranch: 'main',
      pageUrl: id => `${access.endpoint}/${id}`,
      tokenAdvice: 'set HF_TOKEN or huggingface.token in config.yaml',
      endpointAdvice: 'HF_ENDPOINT or huggingface.endpoint in config.yaml',
      treeHasDigests: true,
      headRedirects: true,
      hasSearch: true,
      search: {
        path: (words, limit, format) => {
          const query = new URLSearchParams({ search: words, filter: format, sort: 'downloads', direction: '-1' })
          query.set('limit', `${limit}`)
          for (const field of FIELDS) query.append('expand', field)
          return `/api/models?${query}`
        },
        records: reply => reply,
        id: 'id'
      }
    })
  }
)

const isTrue = (value: string | undefined) => /^(1|on|yes|true)$/i.test(value ?? '')

/** Returns the variable that forbids requests, as in Hugging Face's own client. */
export const offlineVariable = (env: NodeJS.ProcessEnv): string | undefined =>
  ['HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE'].find(name => isTrue(env[name]))

const expanded = (path: string): string => path.replace(/^~(?=$|[\\/])/, homedir())

export function tokenFile(env: NodeJS.ProcessEnv): string {
  if (env.HF_TOKEN_PATH) return expanded(env.HF_TOKEN_PATH)
  const cache = env.XDG_CACHE_HOME ? expanded(env.XDG_CACHE_HOME) : join(homedir(), '.cache')
  return join(env.HF_HOME ? expanded(env.HF_HOME) : join(cache, 'huggingface'), 'token')
}

export function tokenSources(env: NodeJS.ProcessEnv) {
  if (isTrue(env.HF_HUB_DISABLE_IMPLICIT_TOKEN)) return { variables: [] }
  return { variables: ['HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN'], file: tokenFile(env) }
}
