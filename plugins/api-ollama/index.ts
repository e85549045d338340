import type { FastifyInstance, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { ConfigError } from '../../core/config/problems.ts'
import type { Model } from '../../core/contracts/models.ts'
import { parseModelName } from '../../core/models/model-name.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { MAKING_NEEDS, modelMaking } from './models/model-making.ts'
import { newName, ollamaNaming } from './naming.ts'
import { hostedNames, pathInProfile } from './profile-paths.ts'
import { profileRoutes } from './routes.ts'
import { LISTEN_PATTERN, listenFault, listenToo, parseListen, type SecondListener } from './second-listener.ts'

const LISTEN = 'api-ollama.listen'

export default definePlugin({
  name: 'api-ollama',
  api: 1,
  description: "The API as Ollama's clients want it, under /ollama and at an address of its own",
  optional: true,
  needs: ['nativeApi', 'access', ...MAKING_NEEDS],
  options: Type.Object(
    {
      listen: Type.String({
        default: '',
        pattern: LISTEN_PATTERN,
        title: 'an address with a port such as 127.0.0.1:11434',
        description: "Address that serves Ollama's clients alone, such as 127.0.0.1:11434; empty is none"
      })
    },
    { additionalProperties: false }
  ),
  setup(context, options) {
    const address = parseListen(options.listen)
    const fault = listenFault(options.listen, address, context.config.port)
    if (fault) throw new ConfigError([{ where: LISTEN, setting: LISTEN, message: fault }])
    const naming = ollamaNaming(context.service('catalog'))
    const nativeApi = context.service('nativeApi')
    const making = modelMaking(context)
    const hosted = hostedNames(naming.parse)
    const admit = address && context.service('access').admit(address, LISTEN)
    let app: FastifyInstance
    let listener: SecondListener | undefined
    return {
      hooks: hosted.hooks,
      routes: async instance => {
        app = instance
        instance.addHook('preClose', async () => listener?.stopAccepting())
        instance.addHook('onClose', async () => await listener?.closed())
        const native = {
          naming: { parse: parseModelName, shown: ({ publicName }: Model) => publicName },
          newName: parseModelName,
          framingOf: (request: FastifyRequest) => nativeApi.framingOf(request, 'sse')
        }
        await instance.register(making.routes(native), { prefix: '/api' })
        await instance.register(
          profileRoutes({
            nativeApi,
            naming,
            making: making.routes({ naming, newName, framingOf: request => nativeApi.framingOf(request, 'ndjson') }),
            markHosted: hosted.mark
          })
        )
      },
      async start() {
        await making.start()
        if (!address) return
        listener = await listenToo(app, address, {
          log: context.log,
          ended: context.signal,
          prepare: request => {
            admit?.(request)
            request.url = pathInProfile(request.url ?? '/')
            if (request.url.startsWith('/v1')) hosted.mark(request)
          }
        })
      },
      stop: () => making.stop()
    }
  }
})
