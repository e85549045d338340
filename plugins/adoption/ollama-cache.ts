import { join } from 'node:path'
import { type CacheDisk, inspectFile } from './cache-disk.ts'
import type { CacheFile, Candidate } from './candidate.ts'
import { type OllamaManifest, ollamaBlobs, planOllama } from './ollama.ts'

/** The models in a folder of Ollama's, which holds `manifests` and `blobs`. */
export async function findOllama(folder: string, disk: CacheDisk): Promise<Candidate[]> {
  const candidates: Candidate[] = []
  const blobs = new Map<string, CacheFile>()
  for (const manifest of await readManifests(join(folder, 'manifests'), disk)) {
    for (const sha256 of ollamaBlobs(manifest)) {
      if (blobs.has(sha256)) continue
      const name = `sha256-${sha256}`
      blobs.set(sha256, await inspectFile(name, join(folder, 'blobs', name)))
    }
    candidates.push(planOllama(manifest, blobs))
  }
  return candidates
}

async function readManifests(folder: string, disk: CacheDisk): Promise<OllamaManifest[]> {
  const manifests: OllamaManifest[] = []
  for (const host of await disk.subfolders(folder)) {
    for (const namespace of await disk.subfolders(join(folder, host))) {
      for (const model of await disk.subfolders(join(folder, host, namespace))) {
        for (const { name: tag } of (await disk.entries(join(folder, host, namespace, model))) ?? []) {
          const path = join(folder, host, namespace, model, tag)
          const text = tag.startsWith('.') ? undefined : await disk.text(path)
          if (text !== undefined) manifests.push({ host, namespace, model, tag, path, text })
        }
      }
    }
  }
  return manifests
}
