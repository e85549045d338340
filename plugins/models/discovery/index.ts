import { homedir } from 'node:os'
import { Type } from 'typebox'
import { Path } from '../../../core/config/core-schema.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { huggingFaceFolders, lmStudioFolders, ollamaFolders } from './cache-folders.ts'
import { findHuggingFace } from './huggingface-cache.ts'
import { findOllama } from './ollama-cache.ts'
import { findLmStudio } from './repository.ts'
import { createToolImports, type Tool } from './tool-imports.ts'

export default definePlugin({
  name: 'adoption',
  api: 1,
  description: 'Models in the caches of Hugging Face, Ollama and LM Studio, for corral import --from',
  offers: ['adoption'],
  needs: ['storage'],
  options: Type.Object(
    {
      huggingface_cache: Path({
        default: '',
        description: "Folder of the Hugging Face client's cache; empty uses HF_HUB_CACHE, HF_HOME and LLAMA_CACHE"
      }),
      ollama_models: Path({
        default: '',
        description: "Folder of Ollama's models; empty uses OLLAMA_MODELS and the folder of Ollama's service"
      }),
      lm_studio_models: Path({
        default: '',
        description: "Folder of LM Studio's models; empty uses LM Studio's own settings"
      })
    },
    { additionalProperties: false, restart: true }
  ),
  setup(context, options) {
    const host = { env: process.env, home: homedir(), platform: process.platform }
    const tools: Tool[] = [
      {
        name: 'huggingface',
        setting: 'huggingface_cache',
        folders: async () => huggingFaceFolders(options.huggingface_cache, host),
        models: findHuggingFace
      },
      {
        name: 'ollama',
        setting: 'ollama_models',
        folders: async () => ollamaFolders(options.ollama_models, host),
        models: findOllama
      },
      {
        name: 'lm-studio',
        setting: 'lm_studio_models',
        folders: disk => lmStudioFolders(options.lm_studio_models, host, path => disk.text(path)),
        models: findLmStudio
      }
    ]
    return { services: { adoption: createToolImports(tools, context.service('storage')) } }
  }
})
