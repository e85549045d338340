import { Type } from 'typebox'
import { definePlugin } from '../../../../core/plugins/plugin.ts'
import { connectionOptions, hubFetch } from '../hub-options.ts'
import { createUrlHub } from './hub.ts'

export default definePlugin({
  name: 'url',
  api: 1,
  description: 'Models from plain addresses (https://…/model.gguf)',
  needs: ['downloads'],
  optional: true,
  options: Type.Object(connectionOptions, { additionalProperties: false, restart: true }),
  setup(context, options) {
    context.service('downloads').addHub(createUrlHub(hubFetch('The address', options, context), options.proxy))
    return {}
  }
})
