import { definePlugin } from '../../../core/plugins/plugin.ts'
import { findToken, publicHubAccess, publicHubOptions } from '../hub-options.ts'
import { createModelScopeHub } from './hub.ts'

const PLACE = { usual: 'https://modelscope.cn', variable: 'MODELSCOPE_ENDPOINT' }

export default definePlugin({
  name: 'modelscope',
  api: 1,
  description: 'Models from ModelScope (modelscope:owner/name)',
  needs: ['downloads'],
  optional: true,
  options: publicHubOptions(PLACE, 'MODELSCOPE_API_TOKEN'),
  setup(context, options) {
    const variables = ['MODELSCOPE_API_TOKEN', 'MODELSCOPE_ACCESS_TOKEN']
    const { endpoint, title, send } = publicHubAccess(context, options, {
      ...PLACE,
      title: 'ModelScope',
      hosts: ['modelscope.cn', 'www.modelscope.cn'],
      async credentials() {
        const token = await findToken({ setting: options.token, variables, file: undefined }, process.env)
        // Older parts of the hub only accept the cookie.
        return token === undefined ? undefined : { authorization: `Bearer ${token}`, cookie: `m_session_id=${token}` }
      }
    })
    // The international site has other models: its addresses only work when it is the endpoint.
    const site = new URL(endpoint).host.endsWith('modelscope.ai') ? 'modelscope.ai' : 'modelscope.cn'
    const prefixes = ['modelscope:', `https://${site}/`, `https://www.${site}/`]
    context.service('downloads').addHub(createModelScopeHub({ title, prefixes, endpoint, send, proxy: options.proxy }))
    return {}
  }
})
