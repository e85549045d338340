import { join } from 'node:path'
import { Type } from 'typebox'
import { definePlugin } from '../../../core/plugin.ts'
import { createHfLikeHub } from '../hf-like/hub.ts'
import { createEndpoints } from '../http/endpoints.ts'
import {
  connectionOptions,
  endpointOf,
  hubFetch,
  logEndpoint,
  mirrorOptions,
  serverOptions,
  titleAt,
  withoutSlash
} from '../hub-options.ts'
import { bearer, findToken } from '../token.ts'

const USUAL = 'https://hub.opencsg.com'

/** The token file of CSGHub's own client, where the environment says that there is one. */
function tokenFile(env: NodeJS.ProcessEnv): string | undefined {
  return env.CSGHUB_TOKEN_PATH || (env.CSGHUB_HOME ? join(env.CSGHUB_HOME, 'token') : undefined)
}

export default definePlugin({
  name: 'csghub',
  api: 1,
  description: 'Models from CSGHub, the hub of OpenCSG (csghub:owner/name)',
  needs: ['downloads'],
  optional: true,
  options: Type.Object(
    {
      ...serverOptions({
        endpoint: `Address of the hub; empty is CSGHUB_DOMAIN, else ${USUAL}`,
        token: "Access token; empty is CSGHUB_TOKEN, else the token file of CSGHub's own client"
      }),
      ...mirrorOptions,
      ...connectionOptions
    },
    { additionalProperties: false }
  ),
  setup(context, options) {
    const { env } = process
    const endpoint = endpointOf(options.endpoint, 'CSGHUB_DOMAIN', USUAL, env)
    const title = titleAt('CSGHub', endpoint, USUAL)
    logEndpoint(context.log, 'CSGHub', endpoint, USUAL)
    const fetch = hubFetch(title, options, context)
    const sources = { setting: options.token, variables: ['CSGHUB_TOKEN'], file: tokenFile(env) }
    const ask = createEndpoints({
      fetch,
      endpoint,
      mirrors: options.mirrors.map(withoutSlash),
      trustedHosts: [],
      credentials: async () => bearer(await findToken(sources, env))
    })
    context.service('downloads').addHub(
      createHfLikeHub({
        name: 'csghub',
        title,
        prefixes: ['csghub:', 'https://hub.opencsg.com/', 'https://opencsg.com/'],
        ask,
        proxy: options.proxy,
        pathPrefix: '/csg',
        pageOf: id => `${endpoint}/models/${id}`,
        tokenAdvice: 'set CSGHUB_TOKEN or csghub.token in config.yaml',
        treeHasDigests: false,
        headRedirects: false,
        hasSearch: false,
        offline: () => undefined
      })
    )
    return { stop: () => fetch.close() }
  }
})
