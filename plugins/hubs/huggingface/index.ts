import { Type } from 'typebox'
import { definePlugin } from '../../../core/plugin.ts'
import { createHfLikeHub } from '../hf-like/hub.ts'
import { createEndpoints } from '../http/endpoints.ts'
import {
  connectionOptions,
  endpointOf,
  hostsWith,
  hubFetch,
  logEndpoint,
  mirrorOptions,
  serverOptions,
  titleAt,
  withoutSlash
} from '../hub-options.ts'
import { bearer, findToken } from '../token.ts'
import { offlineVariable, tokenSources } from './environment.ts'

const USUAL = 'https://huggingface.co'

export default definePlugin({
  name: 'huggingface',
  api: 1,
  description: 'Models from Hugging Face (hf:owner/name)',
  needs: ['downloads'],
  optional: true,
  options: Type.Object(
    {
      ...serverOptions({
        endpoint: `Address of the hub; empty is HF_ENDPOINT, else ${USUAL}`,
        token: 'Access token; empty is HF_TOKEN, else the one that "hf auth login" stored'
      }),
      ...mirrorOptions,
      ...connectionOptions
    },
    { additionalProperties: false }
  ),
  setup(context, options) {
    const { env } = process
    const endpoint = endpointOf(options.endpoint, 'HF_ENDPOINT', USUAL, env)
    const title = titleAt('Hugging Face', endpoint, USUAL)
    logEndpoint(context.log, 'Hugging Face', endpoint, USUAL)
    const fetch = hubFetch(title, options, context)
    const ask = createEndpoints({
      fetch,
      endpoint,
      mirrors: options.mirrors.map(withoutSlash),
      trustedHosts: hostsWith(endpoint, ['huggingface.co', 'hf.co']),
      credentials: async () => bearer(await findToken(tokenSources(options.token, env), env))
    })
    context.service('downloads').addHub(
      createHfLikeHub({
        name: 'huggingface',
        title,
        prefixes: [
          'hf:',
          'hf.co/',
          'huggingface.co/',
          'https://huggingface.co/',
          'https://hf.co/',
          'http://huggingface.co/',
          'http://hf.co/'
        ],
        ask,
        proxy: options.proxy,
        pathPrefix: '',
        defaultBranch: 'main',
        pageOf: id => `${endpoint}/${id}`,
        tokenAdvice: 'set HF_TOKEN or huggingface.token in config.yaml',
        treeHasDigests: true,
        headRedirects: true,
        hasSearch: true,
        offline() {
          const variable = offlineVariable(env)
          return (
            variable &&
            `Hugging Face is not asked because ${variable} is set to ${env[variable]}. Unset it to download models.`
          )
        }
      })
    )
    return { stop: () => fetch.close() }
  }
})
