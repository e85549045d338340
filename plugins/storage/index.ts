import { Type } from 'typebox'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { createCatalog } from './catalog.ts'
import { DEMO_MODEL, installDemoModel } from './demo-model.ts'
import { aliasesOf } from './model-index.ts'
import { ModelStore } from './model-store.ts'

export default definePlugin({
  name: 'storage',
  api: 1,
  description: 'Models on disk: names, variants, import and removal',
  offers: ['storage', 'catalog'],
  options: Type.Object(
    {
      demo_model: Type.Boolean({
        default: true,
        description: 'Store the bundled demo model corral/tiny-chat at the first start'
      })
    },
    { additionalProperties: false }
  ),
  async setup({ log, paths, config }, options) {
    const aliases = aliasesOf(config.models)
    const store = await ModelStore.open(paths.models, log, aliases)
    if (options.demo_model) {
      try {
        await installDemoModel(store, paths.home)
      } catch (error) {
        // Everything else works without it, and the next start tries again.
        log.error(error, `The demo model ${DEMO_MODEL.owner}/${DEMO_MODEL.name} cannot be stored`)
      }
    }
    return { services: { storage: store, catalog: createCatalog(store, aliases) }, stop: () => store.close() }
  }
})
