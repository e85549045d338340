import { join } from 'node:path'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { createHfLikeHub } from './hf-like.ts'
import { bearer, findToken, publicHubAccess, publicHubOptions } from './hub-options.ts'

const HUB = { usual: 'https://hub.opencsg.com', variable: 'CSGHUB_DOMAIN' }

export default definePlugin({
  name: 'csghub',
  api: 1,
  description: 'Models from CSGHub, the hub of OpenCSG (csghub:owner/name)',
  needs: ['downloads'],
  optional: true,
  options: publicHubOptions(HUB, "CSGHUB_TOKEN, or the token file of CSGHub's own client"),
  setup(context, options) {
    const { env } = process
    // The token file of CSGHub's own client, if the environment names one.
    const file = env.CSGHUB_TOKEN_PATH || (env.CSGHUB_HOME ? join(env.CSGHUB_HOME, 'token') : undefined)
    const sources = { setting: options.token, variables: ['CSGHUB_TOKEN'], file }
    const { endpoint, title, send } = publicHubAccess(context, options, {
      ...HUB,
      title: 'CSGHub',
      hosts: [],
      credentials: async () => bearer(await findToken(sources, env))
    })
    context.service('downloads').addHub(
      createHfLikeHub({
        name: 'csghub',
        title,
        prefixes: ['csghub:', 'https://hub.opencsg.com/', 'https://opencsg.com/'],
        send,
        proxy: options.proxy,
        pathPrefix: '/csg',
        pageUrl: id => `${endpoint}/models/${id}`,
        tokenAdvice: 'set CSGHUB_TOKEN or csghub.token in config.yaml',
        endpointAdvice: 'CSGHUB_DOMAIN or csghub.endpoint in config.yaml',
        treeHasDigests: false,
        headRedirects: false,
        hasSearch: false,
        search: {
          path: (words, limit, format) => {
            const query = { page: '1', per: `${limit}`, search: words, sort: 'most_download', framework_tag: format }
            return `/api/v1/models?${new URLSearchParams(query)}`
          },
          records: reply => (isObject(reply) ? reply.data : undefined),
          id: 'path'
        }
      })
    )
    return {}
  }
})
