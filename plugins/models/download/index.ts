import { join } from 'node:path'
import { Type } from 'typebox'
import { Bytes, Duration, Timeout } from '../../../core/config/core-schema.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { parseBytes } from '../../../core/system/bytes.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import { knownName } from './choice/known-names.ts'
import { PulledNames } from './pulled-names.ts'
import { createDownloads } from './pulls/downloads-service.ts'
import { machineMemory } from './pulls/pull-planner.ts'
import { TransferThread } from './transfer/transfers.ts'

export default definePlugin({
  name: 'downloads',
  api: 1,
  description: 'Pulls of models from hubs: the choice of files, the transfer, and pulls in the background',
  offers: ['downloads'],
  needs: ['storage', 'catalog', 'hardware', 'engines', 'conversion'],
  options: Type.Object(
    {
      search: Type.Array(Type.String({ minLength: 1 }), {
        default: ['huggingface'],
        description: 'Hubs to search for a name without prefix, in this order'
      }),
      connections: Type.Integer({
        default: 8,
        minimum: 1,
        maximum: 64,
        description: 'Maximum connections of all downloads together',
        restart: true
      }),
      connections_per_file: Type.Integer({
        default: 4,
        minimum: 1,
        maximum: 64,
        description: 'Maximum connections for one file',
        restart: true
      }),
      bandwidth_limit: Bytes({
        default: '0',
        description: 'Maximum bytes per second of all downloads together; 0 means no limit',
        restart: true
      }),
      stall_timeout: Timeout({
        default: '30s',
        description: 'A connection that is silent for this long is replaced by a new one',
        restart: true
      }),
      private_addresses: Type.Array(Type.String({ format: 'corral-private-address' }), {
        default: [],
        needsTrust: true,
        description:
          'Hosts, addresses and networks beside public ones from which clients may pull models by address; "*" is all. Hubs and mirrors in the settings need no entry'
      }),
      pause_after: Duration({
        default: '5s',
        description:
          'How long a pull continues after the last client that watched it has left; "detach" keeps it running'
      })
    },
    { additionalProperties: false }
  ),
  setup(context, options) {
    const hardware = context.service('hardware')
    const catalog = context.service('catalog')
    // Models are listed under the name of Ollama's library by which they were pulled.
    const pulledNames = new PulledNames(join(context.paths.home, 'pulled-names.json'), context.log)
    catalog.addNames(
      name => pulledNames.meaning(name),
      () => pulledNames.listed()
    )
    catalog.addNames(name => knownName(name)?.model)
    const toSettings = (given: typeof options) => ({
      search: given.search,
      privateAddresses: given.private_addresses,
      pauseAfter: parseDuration(given.pause_after)!,
      limits: { pulls: context.config.limits.pulls, waiting: context.config.limits.waiting_pulls }
    })
    const downloads = createDownloads({
      ...toSettings(options),
      storage: context.service('storage'),
      catalog,
      pulledNames,
      transfers: new TransferThread({
        connections: options.connections,
        connectionsPerFile: options.connections_per_file,
        bandwidthLimit: parseBytes(options.bandwidth_limit)!,
        stallTimeout: parseDuration(options.stall_timeout)!
      }),
      conversion: context.service('conversion'),
      paths: context.paths,
      memory: async () => machineMemory(await hardware.detect(), context.service('engines').settings),
      retryPauses: [30_000, 600_000],
      hooks: context.hooks,
      log: context.log
    })
    return {
      services: { downloads },
      hooks: async app => {
        app.addHook('onReady', async () => downloads.checkSearch())
      },
      start: () => downloads.start(),
      reload: (next: typeof options) => downloads.configure(toSettings(next)),
      stop: () => downloads.stop()
    }
  }
})
