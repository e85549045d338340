import { definePlugin } from '../../../core/plugins/plugin.ts'
import { createHfLikeHub } from '../hf-like/hub.ts'
import { openPublicHub, publicHubOptions } from '../public-hub.ts'
import { bearer, findToken } from '../token.ts'
import { offlineVariable, tokenSources } from './environment.ts'

const PLACE = { usual: 'https://huggingface.co', variable: 'HF_ENDPOINT' }

export default definePlugin({
  name: 'huggingface',
  api: 1,
  description: 'Models from Hugging Face (hf:owner/name)',
  needs: ['downloads'],
  optional: true,
  options: publicHubOptions(PLACE, 'HF_TOKEN, else the one that "hf auth login" stored'),
  setup(context, options) {
    const { env } = process
    const { endpoint, title, ask } = openPublicHub(context, options, {
      ...PLACE,
      title: 'Hugging Face',
      hosts: ['huggingface.co', 'hf.co'],
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
    return {}
  }
})
