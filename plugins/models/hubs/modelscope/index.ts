import { definePlugin } from '../../../../core/plugins/plugin.ts'
import { bearer, findToken, publicHubAccess, publicHubOptions } from '../hub-options.ts'
import { createModelScopeHub } from './hub.ts'

const HUB = { usual: 'https://modelscope.cn', variable: 'MODELSCOPE_ENDPOINT' }

export default definePlugin({
  name: 'modelscope',
  api: 1,
  description: 'Models from ModelScope (modelscope:owner/name)',
  needs: ['downloads'],
  optional: true,
  options: publicHubOptions(HUB, 'MODELSCOPE_API_TOKEN'),
  setup(context, options) {
    const variables = ['MODELSCOPE_API_TOKEN', 'MODELSCOPE_ACCESS_TOKEN']
    const access = publicHubAccess(context, options, {
      ...HUB,
      title: 'ModelScope',
      hosts: ['modelscope.cn', 'www.modelscope.cn'],
      async credentials() {
        const token = await findToken({ setting: options.token, variables }, process.env)
        // Older parts of the hub only accept the cookie.
        return token === undefined ? undefined : { ...bearer(token), cookie: `m_session_id=${token}` }
      }
    })
    context.service('downloads').addHub(createModelScopeHub(access, options.proxy))
    return {}
  }
})
