import type { FastifyInstance, FastifyPluginAsync } from 'fastify'
import { Type } from 'typebox'
import { NATIVE_NAMING } from '../../../core/contracts/native-api.ts'
import {
  type AdditionalListener,
  LISTEN_PATTERN,
  openConfiguredListener,
  readListen
} from '../../../core/http/listening.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { parseBytes } from '../../../core/system/bytes.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import { BlobStore, UploadSlots } from './models/blobs.ts'
import { createModelRoutes } from './models/create-model.ts'
import { mapListenerPath, ollamaNaming, ollamaRoutes } from './routes.ts'

const LISTEN = { setting: 'api-ollama.listen', served: "Ollama's clients are", path: '/ollama', example: 11434 }
const SWEEP_INTERVAL_MS = 3_600_000

export default definePlugin({
  name: 'api-ollama',
  api: 1,
  description: "The API for Ollama's clients, under /ollama and at an additional address",
  optional: true,
  needs: ['nativeApi', 'access', 'storage', 'catalog', 'scheduler', 'engines', 'downloads', 'conversion'],
  options: Type.Object(
    {
      listen: Type.String({
        default: '',
        pattern: LISTEN_PATTERN,
        title: 'an address with a port such as 127.0.0.1:11434',
        description: "Additional address for Ollama's clients, such as 127.0.0.1:11434; empty is none"
      })
    },
    { restart: true }
  ),
  setup(context, options) {
    const { log } = context
    const address = readListen(options.listen, context.config.port, LISTEN)
    const admit = address && context.service('access').admit(address, LISTEN.setting)
    const naming = ollamaNaming(context.service('catalog'))
    const nativeApi = context.service('nativeApi')
    const storage = context.service('storage')
    const { limits } = context.config
    const blobs = new BlobStore(context.paths.blobs, storage, log, parseBytes(limits.uploads_size)!)
    const making = {
      config: context.config,
      engines: context.service('engines'),
      storage,
      catalog: context.service('catalog'),
      scheduler: context.service('scheduler'),
      downloads: context.service('downloads'),
      conversion: context.service('conversion'),
      blobs,
      uploads: new UploadSlots(limits.uploads),
      uploadStall: parseDuration(limits.upload_stall)!
    }
    const sweep = () =>
      blobs
        .sweep()
        .catch(error => log.warn(error, `The folder of uploaded files, ${context.paths.blobs}, cannot be read`))
    let app: FastifyInstance
    let listener: AdditionalListener | undefined
    let sweeping: NodeJS.Timeout | undefined
    return {
      routes: async instance => {
        app = instance
        instance.addHook('preClose', async () => listener?.stopAccepting())
        instance.addHook('onClose', async () => await listener?.closed())
        const [sse, ndjson] = [nativeApi.streams('sse'), nativeApi.streams('ndjson')]
        await instance.register(api => createModelRoutes(api, making, NATIVE_NAMING, sse), { prefix: '/api' })
        const ollama: FastifyPluginAsync = api => createModelRoutes(api, making, naming, ndjson)
        await instance.register(scope => ollamaRoutes(scope, nativeApi, naming, ollama))
      },
      async start() {
        await sweep()
        sweeping = setInterval(sweep, SWEEP_INTERVAL_MS).unref()
        if (!address) return
        listener = await openConfiguredListener(app, address, LISTEN, {
          log,
          ended: context.signal,
          prepare: request => {
            admit?.(request)
            request.url = mapListenerPath(request.url ?? '/')
          }
        })
      },
      stop: () => clearInterval(sweeping)
    }
  }
})
