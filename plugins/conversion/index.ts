import { Type } from 'typebox'
import { Program } from '../../core/config/core-schema.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { createConversion } from './conversion-service.ts'

export default definePlugin({
  name: 'conversion',
  api: 1,
  description: 'Makes GGUF files of SafeTensors models, with the tools of llama.cpp',
  offers: ['conversion'],
  needs: ['storage', 'runtimes'],
  options: Type.Object(
    {
      python: Program({
        default: '',
        description: "Python that has the converter's packages already; empty makes an environment of corral's own"
      }),
      package_index: Type.String({
        default: '',
        pattern: '^(https?://\\S+)?$',
        title: 'an address such as https://pypi.org/simple',
        description: 'Package index to install from; empty leaves it to pip and uv, which have settings of their own'
      }),
      torch_index: Type.String({
        default: 'https://download.pytorch.org/whl/cpu',
        pattern: '^(https?://\\S+)?$',
        title: 'an address such as https://pypi.org/simple',
        description: 'Index with builds of torch for processors, used where it can be reached; empty is none'
      })
    },
    { additionalProperties: false }
  ),
  setup(context, options) {
    const conversion = createConversion(context, {
      python: options.python,
      packageIndex: options.package_index,
      torchIndex: options.torch_index
    })
    return {
      services: { conversion },
      start: () => conversion.start(),
      stop: () => conversion.stop()
    }
  }
})
