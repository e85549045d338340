import { Type } from 'typebox'
import { definePlugin } from '../../../../core/plugins/plugin.ts'
import { connectionOptions, hubFetch, serverOptions, withoutSlash } from '../hub-options.ts'
import { createCorralHub } from './hub.ts'

export default definePlugin({
  name: 'corral-hub',
  api: 1,
  description: 'Models from another corral (corral://host:port/owner/name)',
  needs: ['downloads'],
  optional: true,
  options: Type.Object(
    {
      ...serverOptions(
        'Address of the corral that corral:owner/name refers to, for example http://big-machine:11435; empty means none',
        'API key of that corral'
      ),
      ...connectionOptions
    },
    { additionalProperties: false, restart: true }
  ),
  setup(context, options) {
    const fetch = hubFetch('The other corral', options, context)
    const hub = createCorralHub(fetch, withoutSlash(options.endpoint), options.token, options.proxy)
    context.service('downloads').addHub(hub)
    return {}
  }
})
