import { Type } from 'typebox'
import { definePlugin } from '../../../core/plugin.ts'
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
import { findToken } from '../token.ts'
import { createModelScopeHub } from './hub.ts'

const USUAL = 'https://modelscope.cn'

export default definePlugin({
  name: 'modelscope',
  api: 1,
  description: 'Models from ModelScope (modelscope:owner/name)',
  needs: ['downloads'],
  optional: true,
  options: Type.Object(
    {
      ...serverOptions({
        endpoint: `Address of the hub; empty is MODELSCOPE_ENDPOINT, else ${USUAL}`,
        token: 'Access token; empty is MODELSCOPE_API_TOKEN'
      }),
      ...mirrorOptions,
      ...connectionOptions
    },
    { additionalProperties: false }
  ),
  setup(context, options) {
    const { env } = process
    const endpoint = endpointOf(options.endpoint, 'MODELSCOPE_ENDPOINT', USUAL, env)
    const title = titleAt('ModelScope', endpoint, USUAL)
    logEndpoint(context.log, 'ModelScope', endpoint, USUAL)
    const fetch = hubFetch(title, options, context)
    const variables = ['MODELSCOPE_API_TOKEN', 'MODELSCOPE_ACCESS_TOKEN']
    const ask = createEndpoints({
      fetch,
      endpoint,
      mirrors: options.mirrors.map(withoutSlash),
      trustedHosts: hostsWith(endpoint, ['modelscope.cn', 'www.modelscope.cn']),
      async credentials() {
        const token = await findToken({ setting: options.token, variables, file: undefined }, env)
        // Older parts of the hub know the cookie only.
        return token === undefined ? undefined : { authorization: `Bearer ${token}`, cookie: `m_session_id=${token}` }
      }
    })
    // The international site has models of its own; its addresses are asked for there or not at all.
    const site = new URL(endpoint).host.endsWith('modelscope.ai') ? 'modelscope.ai' : 'modelscope.cn'
    const prefixes = ['modelscope:', `https://${site}/`, `https://www.${site}/`]
    context.service('downloads').addHub(createModelScopeHub({ title, prefixes, endpoint, ask, proxy: options.proxy }))
    return { stop: () => fetch.close() }
  }
})
