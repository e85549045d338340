import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import type { ModelNaming, NativeMount } from '../../core/contracts/native-api.ts'
import { bodyObject } from '../../core/http/json-body.ts'
import { parseModelName } from '../../core/models/model-name.ts'
import { version } from '../../core/system/package-info.ts'
import { answerRoutes } from './answer-routes.ts'
import { convertRoutes } from './convert-routes.ts'
import type { MountedDependencies, NativeDependencies } from './dependencies.ts'
import { embedRoutes } from './embed-routes.ts'
import { importRoutes } from './import-routes.ts'
import { modelRoutes } from './model-routes.ts'
import { createNativeStreams } from './native-streams.ts'
import { serverOperations } from './operations/server.ts'
import { pullRoutes } from './pull-routes.ts'

/** Names as the native API has them: always with their owner, the default variant without a tag. */
export const NATIVE_NAMING: ModelNaming = { parse: parseModelName, shown: ({ publicName }) => publicName }

/** The native API without its prefix. */
export function nativeRoutes(
  deps: NativeDependencies,
  { defaultFraming, naming = NATIVE_NAMING, version: shownVersion = version, modelfile }: NativeMount
): FastifyPluginAsync {
  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    const mounted: MountedDependencies = {
      ...deps,
      naming,
      modelfile: modelfile ?? (() => ''),
      streams: createNativeStreams({ defaultFraming, negotiate: deps.negotiate, heartbeat: deps.heartbeat })
    }
    // A body that is missing or no object gets its own code before the schema speaks of fields.
    app.addHook('preValidation', async request => {
      if (request.method === 'POST' || request.method === 'DELETE') bodyObject(request.body)
    })
    app.get('/health', { schema: serverOperations.health }, async () => ({ status: 'ok' }))
    app.get('/version', { schema: serverOperations.version }, async () => ({ version: shownVersion }))
    await app.register(answerRoutes(mounted))
    await app.register(embedRoutes(mounted))
    await app.register(modelRoutes(mounted))
    await app.register(pullRoutes(mounted))
    await app.register(importRoutes(mounted))
    await app.register(convertRoutes(mounted))
  }
}
