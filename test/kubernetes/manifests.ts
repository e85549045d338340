import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseAllDocuments } from 'yaml'
import { packageRoot } from '../../core/system/package-info.ts'

export const MANIFESTS = join(packageRoot, 'packaging', 'kubernetes')
/** Folders with a kustomization. */
export const OVERLAYS = ['base', 'nvidia', 'kuberay', 'keda', 'llm-d']

/** Parses a file with several YAML documents. @throws if the YAML is invalid */
export function parseObjects(text: string): any[] {
  return parseAllDocuments(text, { merge: true }).map(document => {
    const [error] = document.errors
    if (error) throw error
    return document.toJS()
  })
}

export const readManifest = (path: string) => readFileSync(join(MANIFESTS, path), 'utf8')

/** The pod templates of an object, by purpose. */
export function podTemplates(object: any): any[] {
  if (object.kind === 'RayCluster') {
    const { headGroupSpec, workerGroupSpecs } = object.spec
    return [headGroupSpec.template, ...workerGroupSpecs.map(({ template }: any) => template)]
  }
  return object.spec?.template ? [object.spec.template] : []
}
