import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { isObject } from '../../../core/system/json-object.ts'

/** Returns the architectures in a config.json that the converter looks up: the model's and its text model's. */
export function modelArchitectures(config: unknown): string[] {
  const sections = isObject(config) ? [config, config.text_config] : []
  return sections.flatMap(section => {
    const first: unknown =
      isObject(section) && Array.isArray(section.architectures) ? section.architectures[0] : undefined
    return typeof first === 'string' ? [first] : []
  })
}

/** Returns the architectures that llama.cpp's converter supports. Undefined if its source has no known list. */
export async function supportedArchitectures(folder: string): Promise<Set<string> | undefined> {
  const read = (...path: string[]) => readFile(join(folder, ...path), 'utf8').catch(() => '')
  const [, map = ''] = /^TEXT_MODEL_MAP\b[^{]*\{([^}]*)\}/m.exec(await read('conversion', '__init__.py')) ?? []
  const named = [...map.matchAll(/"([^"]+)":/g)].map(([, name]) => name!)
  if (named.length > 0) return new Set(named)
  // Older converters are one script in which each class registers its architectures.
  const script = await read('convert_hf_to_gguf.py')
  const registered = [...script.matchAll(/^@(?:ModelBase|Model)\.register\(([^)]*)\)/gm)]
  const names = registered.flatMap(([, list]) => [...list!.matchAll(/"([^"]+)"/g)].map(([, name]) => name!))
  return names.length > 0 ? new Set(names) : undefined
}
