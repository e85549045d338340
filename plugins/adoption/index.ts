import { homedir } from 'node:os'
import { join } from 'node:path'
import { type Static, Type } from 'typebox'
import { Path } from '../../core/config/core-schema.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { CacheAdoption, type Tool } from './adoption.ts'
import { huggingFaceFolders, lmStudioHomes, lmStudioModels, ollamaFolders } from './cache-folders.ts'
import { findHuggingFace } from './huggingface-cache.ts'
import { findOllama } from './ollama-cache.ts'
import { findLmStudio } from './repository.ts'

const OptionsSchema = Type.Object(
  {
    huggingface_cache: Path({
      default: '',
      description: "Folder of the Hugging Face client's cache; empty heeds HF_HUB_CACHE, HF_HOME and LLAMA_CACHE"
    }),
    ollama_models: Path({
      default: '',
      description: "Folder of Ollama's models; empty heeds OLLAMA_MODELS and looks where Ollama's service keeps them"
    }),
    lm_studio_models: Path({
      default: '',
      description: "Folder of LM Studio's models; empty asks LM Studio's own settings"
    })
  },
  { additionalProperties: false }
)

export default definePlugin({
  name: 'adoption',
  api: 1,
  description: 'Models in the caches of Hugging Face, Ollama and LM Studio, for corral import --from',
  offers: ['adoption'],
  needs: ['storage'],
  options: OptionsSchema,
  setup: (context, options) => ({
    services: { adoption: new CacheAdoption(toolsFor(options), context.service('storage')) }
  })
})

function toolsFor(options: Static<typeof OptionsSchema>): Tool[] {
  const home = homedir()
  const surroundings = { env: process.env, home, platform: process.platform }
  return [
    {
      name: 'huggingface',
      title: 'Hugging Face',
      setting: 'huggingface_cache',
      folders: async () => huggingFaceFolders(options.huggingface_cache, surroundings),
      models: findHuggingFace
    },
    {
      name: 'ollama',
      title: 'Ollama',
      setting: 'ollama_models',
      folders: async () => ollamaFolders(options.ollama_models, surroundings),
      models: findOllama
    },
    {
      name: 'lm-studio',
      title: 'LM Studio',
      setting: 'lm_studio_models',
      async folders(disk) {
        if (options.lm_studio_models) return [options.lm_studio_models]
        const folders: string[] = []
        for (const own of lmStudioHomes(home, await disk.text(join(home, '.lmstudio-home-pointer')))) {
          folders.push(lmStudioModels(own, await disk.text(join(own, 'settings.json')), home))
        }
        return [...new Set(folders)]
      },
      models: findLmStudio
    }
  ]
}
