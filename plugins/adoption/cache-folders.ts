import { join, resolve } from 'node:path'

/** What decides where other tools keep their models. */
export interface Surroundings {
  env: Record<string, string | undefined>
  /** The user's home folder. */
  home: string
  platform: NodeJS.Platform
}

/** Where the Hugging Face client and llama.cpp, which shares its layout, keep models. */
export function huggingFaceFolders(configured: string, { env, home }: Surroundings): string[] {
  if (configured) return [configured]
  const at = (...parts: string[]) => join(expanded(parts[0]!, home), ...parts.slice(1))
  const hub = env.HF_HUB_CACHE || env.HUGGINGFACE_HUB_CACHE
  const folders = hub
    ? [at(hub)]
    : env.HF_HOME
      ? [at(env.HF_HOME, 'hub')]
      : [at(env.XDG_CACHE_HOME || join(home, '.cache'), 'huggingface', 'hub')]
  if (env.LLAMA_CACHE) folders.unshift(at(env.LLAMA_CACHE))
  return distinct(folders)
}

/** Where Ollama keeps models: the user's own and those of the system's service. */
export function ollamaFolders(configured: string, { env, home, platform }: Surroundings): string[] {
  if (configured) return [configured]
  const folders = [env.OLLAMA_MODELS ? expanded(env.OLLAMA_MODELS, home) : join(home, '.ollama', 'models')]
  if (platform === 'linux') folders.push('/usr/share/ollama/.ollama/models')
  return distinct(folders)
}

/**
 * LM Studio's own folders, of which each may have a settings.json that names another folder for the models.
 * @param pointer the text of ~/.lmstudio-home-pointer, if there is one
 */
export function lmStudioHomes(home: string, pointer: string | undefined): string[] {
  const homes = [join(home, '.lmstudio'), join(home, '.cache', 'lm-studio')]
  return distinct(pointer?.trim() ? [expanded(pointer.trim(), home), ...homes] : homes)
}

/** Where an LM Studio with these settings (the text of settings.json, if there is one) keeps models. */
export function lmStudioModels(lmStudioHome: string, settings: string | undefined, home: string): string {
  const standard = join(lmStudioHome, 'models')
  if (settings === undefined) return standard
  try {
    const { downloadsFolder } = JSON.parse(settings)
    return typeof downloadsFolder === 'string' && downloadsFolder ? expanded(downloadsFolder, home) : standard
  } catch {
    // LM Studio itself falls back to its defaults when the file is damaged.
    return standard
  }
}

function expanded(path: string, home: string): string {
  return resolve(path === '~' ? home : /^~[\\/]/.test(path) ? join(home, path.slice(2)) : path)
}

const distinct = (folders: string[]) => [...new Set(folders)]
