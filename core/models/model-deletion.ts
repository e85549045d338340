import type { Catalog } from '../contracts/models.ts'
import { requireFiles, type Storage } from '../contracts/storage.ts'
import { CorralError } from '../errors.ts'
import type { VisibleCatalog } from './allowed-models.ts'
import { bareName, formatModelName, type ModelName, parseRequestedName, type RequestedName } from './model-name.ts'

/**
 * Finds the model to delete, which may exist only as a pull. A short name must match exactly one model. The name by
 * which a variant was pulled refers to this variant. An alias is refused, because it does not show what would be
 * deleted.
 * @throws CorralError `model_not_found`, `forbidden_model`, `unsupported_capability` for a model without files
 */
export function nameToDelete(models: VisibleCatalog, name: RequestedName): ModelName {
  const present = name.owner === undefined ? models.get(name) : models.find(name)
  if (!present) return name as ModelName
  const { owner, name: bare } = requireFiles(present).model
  const isOwn = (given: string | undefined, own: string) => (given ?? own).toLowerCase() === own.toLowerCase()
  if (isOwn(name.owner, owner) && isOwn(name.name, bare)) return { ...name, owner, name: bare }
  const isPulledBy = (listed: string) =>
    formatModelName(parseRequestedName(listed)).toLowerCase() === formatModelName(name).toLowerCase()
  if (models.listedNames(present).some(isPulledBy)) return present.model
  const full = bareName(present.model)
  const message = `"${bareName(name)}" is only another name of "${full}". Delete "${full}" itself.`
  throw new CorralError('model_not_found', message, { param: 'model' })
}

/** For APIs whose lists have a row for each variant: a bare name stands for the default variant only. */
export function listedVariant(catalog: Pick<Catalog, 'variants'>, name: ModelName): ModelName {
  return name.variant === undefined ? (catalog.variants(name)[0]?.model ?? name) : name
}

/** Deletes a model, or one variant. Its requests and pulls end. @throws CorralError `model_not_found` */
export async function deleteModel(
  {
    storage,
    downloads
  }: {
    storage: Pick<Storage, 'find' | 'remove'>
    downloads: { cancelModel(name: ModelName, error: CorralError): Promise<number> }
  },
  name: ModelName
): Promise<void> {
  const message = `"${bareName(name)}" was deleted while it was being pulled. Pull it again to get it.`
  const cancelled = await downloads.cancelModel(name, new CorralError('pull_cancelled', message, { param: 'model' }))
  // The model may exist only as a pull.
  if (cancelled === 0 || storage.find(name)) await storage.remove(name)
}
