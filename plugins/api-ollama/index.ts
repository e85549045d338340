import { Type } from 'typebox'
import { definePlugin } from '../../core/plugin.ts'

export default definePlugin({
  name: 'api-ollama',
  api: 1,
  description: 'The native API once more under /ollama/api, with NDJSON as the default framing of streams',
  optional: true,
  needs: ['nativeApi'],
  options: Type.Object({}, { additionalProperties: false }),
  setup(context) {
    const nativeApi = context.service('nativeApi')
    return {
      routes: async app => {
        app.get('/ollama', async (_request, reply) => reply.type('text/plain; charset=utf-8').send('Ollama is running'))
        await app.register(nativeApi.routes({ defaultFraming: 'ndjson' }), { prefix: '/ollama/api' })
      }
    }
  }
})
