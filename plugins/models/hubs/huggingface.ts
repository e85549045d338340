import { homedir } from 'node:os'
import { join } from 'node:path'
import { CorralError } from '../../../core/errors.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { createHfLikeHub } from './hf-like.ts'
import { bearer, findToken, publicHubAccess, publicHubOptions } from './hub-options.ts'

const HOSTS = ['huggingface.co', 'hf.co']
/** Fields of each repository in a search. */
const FIELDS = ['downloads', 'likes', 'lastModified', 'gated', 'tags', 'pipeline_tag']
const HUB = { usual: 'https://huggingface.co', variable: 'HF_ENDPOINT' }

export default definePlugin({
  name: 'huggingface',
  api: 1,
  description: 'Models from Hugging Face (hf:owner/name)',
  needs: ['downloads'],
  optional: true,
  options: publicHubOptions(HUB, 'HF_TOKEN, or the token that "hf auth login" stored'),
  setup(context, options) {
    const { env } = process
    const { endpoint, title, send } = publicHubAccess(context, options, {
      ...HUB,
      title: 'Hugging Face',
      hosts: HOSTS,
      credentials: async () => bearer(await findToken(tokenSources(options.token, env), env))
    })
    context.service('downloads').addHub(
      createHfLikeHub({
        name: 'huggingface',
        title,
        prefixes: ['hf:', ...['', 'https://', 'http://'].flatMap(scheme => HOSTS.map(host => `${scheme}${host}/`))],
        send: async outgoing => {
          const variable = offlineVariable(env)
          if (variable === undefined) return await send(outgoing)
          throw new CorralError(
            'hub_unreachable',
            `Hugging Face is not used because ${variable} is set to ${env[variable]}. Unset it to download models.`
          )
        },
        proxy: options.proxy,
        pathPrefix: '',
        defaultBranch: 'main',
        pageUrl: id => `${endpoint}/${id}`,
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
    )
    return {}
  }
})

const isTrue = (value: string | undefined) => /^(1|on|yes|true)$/i.test(value ?? '')

/** Returns the variable that forbids requests, as in Hugging Face's own client. */
export function offlineVariable(env: NodeJS.ProcessEnv): string | undefined {
  return ['HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE'].find(name => isTrue(env[name]))
}

function expanded(path: string): string {
  return path.replace(/^~(?=$|[\\/])/, homedir())
}

/** Returns the token file of Hugging Face's own client. */
export function tokenFile(env: NodeJS.ProcessEnv): string {
  if (env.HF_TOKEN_PATH) return expanded(env.HF_TOKEN_PATH)
  const cache = env.XDG_CACHE_HOME ? expanded(env.XDG_CACHE_HOME) : join(homedir(), '.cache')
  return join(env.HF_HOME ? expanded(env.HF_HOME) : join(cache, 'huggingface'), 'token')
}

/** Returns where to look for a token. */
export function tokenSources(setting: string, env: NodeJS.ProcessEnv) {
  const implicit = !isTrue(env.HF_HUB_DISABLE_IMPLICIT_TOKEN)
  return {
    setting,
    variables: implicit ? ['HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN'] : [],
    file: implicit ? tokenFile(env) : undefined
  }
}
