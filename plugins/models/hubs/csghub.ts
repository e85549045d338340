import { join } from 'node:path'
import { isObject } from '../../../core/system/json-object.ts'
import { createHfLikeHub } from './hf-like.ts'
import { hubPlugin, publicHubAccess, publicHubOptions } from './hub-options.ts'

const HUB = { usual: 'https://hub.opencsg.com', variable: 'CSGHUB_DOMAIN' }

export default hubPlugin(
  'csghub',
  'Models from CSGHub, the hub of OpenCSG (csghub:owner/name)',
  publicHubOptions(HUB, "CSGHUB_TOKEN, or the token file of CSGHub's own client"),
  (context, options) => {
    const { CSGHUB_TOKEN_PATH, CSGHUB_HOME } = process.env
    const file = CSGHUB_TOKEN_PATH || (CSGHUB_HOME ? join(CSGHUB_HOME, 'token') : undefined)
    const tokens = { variables: ['CSGHUB_TOKEN'], file }
    const access = publicHubAccess(context, options, { ...HUB, title: 'CSGHub', hosts: [], tokens })
    return createHfLikeHub({
      ...access,
      name: 'csghub',
      prefixes: ['csghub:', 'https://hub.opencsg.com/', 'https://opencsg.com/'],
      proxy: options.proxy,
      pathPrefix: '/csg',
      pageUrl: id => `${access.endpoint}/models/${id}`,
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
  }
)
