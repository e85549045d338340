import { join, resolve } from 'node:path'
import { Type } from 'typebox'
import { checkJson } from '../../../core/system/json-file.ts'
import { parseUntrustedJson } from '../../../core/system/untrusted-json.ts'

/** What determines where other tools store their models. */
export interface HostEnvironment {
  env: Record<string, string | undefined>
  home: string
  platform: NodeJS.Platform
}

/** Returns the folders of the Hugging Face client and of llama.cpp, which uses the same layout. */
export function huggingFaceFolders(configured: string, { env, home }: HostEnvironment): string[] {
  if (configured) return [configured]
  const ofClient = env.HF_HOME || join(env.XDG_CACHE_HOME || join(home, '.cache'), 'huggingface')
  const hub = env.HF_HUB_CACHE || env.HUGGINGFACE_HUB_CACHE || join(ofClient, 'hub')
  return distinct([...(env.LLAMA_CACHE ? [env.LLAMA_CACHE] : []), hub], home)
}

/** Returns Ollama's folders: the user's own and the system service's. */
export function ollamaFolders(configured: string, { env, home, platform }: HostEnvironment): string[] {
  if (configured) return [configured]
  const ofService = platform === 'linux' ? ['/usr/share/ollama/.ollama/models'] : []
  return distinct([env.OLLAMA_MODELS || join(home, '.ollama', 'models'), ...ofService], home)
}

const LmStudioSettings = Type.Object({ downloadsFolder: Type.String({ minLength: 1 }) })

/** Returns LM Studio's folders: its own, or those named in its settings.json. */
export async function lmStudioFolders(
  configured: string,
  { home }: Pick<HostEnvironment, 'home'>,
  read: (path: string) => Promise<string | undefined>
): Promise<string[]> {
  if (configured) return [configured]
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

/** Returns each folder once, absolute, with `~` expanded. */
function distinct(folders: string[], home: string): string[] {
  return [...new Set(folders.map(folder => resolve(folder.replace(/^~(?=$|[\\/])/, () => home))))]
}
