import { existsSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { Type } from 'typebox'
import writeFileAtomic from 'write-file-atomic'
import { Path } from '../../../core/config/core-schema.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { packageRoot } from '../../../core/system/package-info.ts'
import { createCatalog, currentAliases } from './catalog.ts'
import { openLastScan } from './model-scan.ts'
import { ModelStore } from './model-store.ts'

const DEMO_FILE = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')

export default definePlugin({
  name: 'storage',
  api: 1,
  description: 'Models on disk: names, variants, import and removal',
  offers: ['storage', 'catalog'],
  options: Type.Object(
    {
      demo_model: Type.Boolean({
        default: true,
        description: 'Store the bundled demo model corral/tiny-chat at the first start',
        restart: true
      }),
      import_roots: Type.Array(Path({ minLength: 1, description: 'A folder' }), {
        default: [],
        uniqueItems: true,
        needsTrust: true,
        description:
          'Folders that models may be imported from over the network. "corral import" on this machine can use any folder',
        examples: [['/srv/models']]
      }),
      trust: Type.Enum(['any', 'digest'], {
        default: 'any',
        description:
          'Which files are loaded: "any", or with "digest" only files with the digests that were recorded when the model was stored; they are read before the first load after each start, and again after they have changed'
      })
    },
    { additionalProperties: false }
  ),
  async setup({ log, paths, config, hooks }, options) {
    const aliases = currentAliases(() => config.models)
    const last = openLastScan(join(paths.cache, 'models.json'), paths.models)
    const store = await ModelStore.open(paths.models, log, options.import_roots, last)
    store.trust = options.trust
    store.onChange = () => hooks.stateChanged('model')
    if (options.demo_model) {
      try {
        await installDemoModel(store, paths.home)
      } catch (error) {
        // Everything else works without the demo model. The next start tries again.
        log.error(error, 'The demo model corral/tiny-chat could not be stored')
      }
    }
    return {
      services: { storage: store, catalog: createCatalog(store, aliases, log) },
      reload(next: typeof options) {
        store.importRoots = next.import_roots
        store.trust = next.trust
      },
      stop: () => store.close()
    }
  }
})

/** Stores the demo model once. A marker file in the data directory keeps a deleted one from coming back. */
async function installDemoModel(store: ModelStore, home: string): Promise<void> {
  const mark = join(home, 'demo-model-installed')
  if (existsSync(mark)) return
  const name = { owner: 'corral', name: 'tiny-chat' }
  if (!store.find(name)) {
    // Linking is not possible: an upgrade of corral may write into its own files.
    const intake = { origin: { kind: 'bundled', from: 'corral' }, allowHardLink: false } as const
    await store.import({ path: DEMO_FILE, name }, intake)
  }
  await mkdir(home, { recursive: true })
  await writeFileAtomic(mark, 'corral/tiny-chat was stored once. Delete this file to have it again.\n')
}
