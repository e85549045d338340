import { homedir } from 'node:os'
import { join, resolve } from 'node:path'
import { Type } from 'typebox'
import { Path } from '../../../core/config/core-schema.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { checkJson } from '../../../core/system/json-file.ts'
import { parseUntrustedJson } from '../../../core/system/untrusted-json.ts'
import { findHuggingFace, findLmStudio } from './hub-caches.ts'
import { findOllama } from './ollama-cache.ts'
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
    const tool = (name: string, setting: keyof typeof options, folders: FindFolders, models: Tool['models']): Tool => ({
      name,
      setting,
      folders: async disk => (options[setting] ? [options[setting]] : await folders(host, path => disk.text(path))),
      models
    })
    const tools = [
      tool('huggingface', 'huggingface_cache', huggingFaceFolders, findHuggingFace),
      tool('ollama', 'ollama_models', ollamaFolders, findOllama),
      tool('lm-studio', 'lm_studio_models', lmStudioFolders, findLmStudio)
    ]
    return { services: { adoption: createToolImports(tools, context.service('storage')) } }
  }
})

interface HostEnvironment {
  env: Record<string, string | undefined>
  home: string
  platform: NodeJS.Platform
}

type ReadText = (path: string) => Promise<string | undefined>
/** Finds a tool's folders if the settings do not name one. */
type FindFolders = (host: HostEnvironment, read: ReadText) => string[] | Promise<string[]>

/** Returns the folders of the Hugging Face client and of llama.cpp, which uses the same layout. */
export function huggingFaceFolders({ env, home }: HostEnvironment): string[] {
  const ofClient = env.HF_HOME || join(env.XDG_CACHE_HOME || join(home, '.cache'), 'huggingface')
  const hub = env.HF_HUB_CACHE || env.HUGGINGFACE_HUB_CACHE || join(ofClient, 'hub')
  return distinct([...(env.LLAMA_CACHE ? [env.LLAMA_CACHE] : []), hub], home)
}

/** Returns Ollama's folders: the user's own and the system service's. */
export function ollamaFolders({ env, home, platform }: HostEnvironment): string[] {
  const ofService = platform === 'linux' ? ['/usr/share/ollama/.ollama/models'] : []
  return distinct([env.OLLAMA_MODELS || join(home, '.ollama', 'models'), ...ofService], home)
}

const LmStudioSettings = Type.Object({ downloadsFolder: Type.String({ minLength: 1 }) })

/** Returns LM Studio's folders: its own, or those named in its settings.json. */
export async function lmStudioFolders({ home }: HostEnvironment, read: ReadText): Promise<string[]> {
  const pointer = (await read(join(home, '.lmstudio-home-pointer')))?.trim()
  const standard = [join(home, '.lmstudio'), join(home, '.cache', 'lm-studio')]
  const folders: string[] = []
  for (const own of distinct(pointer ? [pointer, ...standard] : standard, home)) {
    // LM Studio itself falls back to its defaults if the file is damaged.
    const settings = await parseUntrustedJson((await read(join(own, 'settings.json'))) ?? '')
    const { value } = checkJson(settings.value, LmStudioSettings)
    folders.push(value?.downloadsFolder ?? join(own, 'models'))
  }
  return distinct(folders, home)
}

const distinct = (folders: string[], home: string): string[] => [
  ...new Set(folders.map(folder => resolve(folder.replace(/^~(?=$|[\\/])/, () => home))))
]
