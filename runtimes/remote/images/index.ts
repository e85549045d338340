import { join } from 'node:path'
import { Type } from 'typebox'
import { Program } from '../../../core/config/core-schema.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { lazyProvider } from '../lazy-provider.ts'
import { releaseSettings } from '../release-settings.ts'

export default definePlugin({
  name: 'images',
  api: 1,
  description: 'Models that make images (stable-diffusion.cpp)',
  optional: true,
  needs: ['engines', 'hardware'],
  options: Type.Object(
    {
      image_server: Program({
        default: '',
        description:
          'sd-server of stable-diffusion.cpp; if empty, the one on PATH, of a release, or compiled from source'
      }),
      steps: Type.Integer({
        default: 0,
        minimum: 0,
        maximum: 200,
        description: 'Steps of each image, such as 20, or 1 to 4 for turbo models; 0 uses the default of the program'
      }),
      ...releaseSettings('stable-diffusion.cpp')
    },
    { restart: true, needsTrust: true }
  ),
  setup({ log, paths: { home }, service }, options) {
    const deps = { options, directory: join(home, 'images'), hardware: service('hardware'), log }
    service('engines').add(
      lazyProvider(
        'images',
        ({ format }, mode) => (format === 'checkpoint' && mode === 'draw' ? 1 : 0),
        async () => (await import('./image-provider.ts')).createImageProvider(deps)
      )
    )
    return {}
  }
})
