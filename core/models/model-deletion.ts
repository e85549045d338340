import type { Downloads } from '../contracts/downloads.ts'
import type { Catalog } from '../contracts/models.ts'
import { requireFiles, type Storage } from '../contracts/storage.ts'
import { CorralError } from '../errors.ts'
import type { SeenCatalog } from './allowed-models.ts'
import { bareName, type ModelName, nameText, parseRequestedName, type RequestedName } from './model-name.ts'

/**
 * The model that a deletion is about; there may be nothing but a pull of it. A short name must mean one model; the name
 * that it was pulled by is that of this one variant, but an alias does not show what it would delete.
 * @throws CorralError `model_not_found`, `forbidden_model`, `unsupported_capability` for a model without files
 */
export function nameToDelete(models: SeenCatalog, name: RequestedName): ModelName {
  const present = name.owner === undefined ? models.get(name) : models.find(name)
  if (!present) return name as ModelName
  const { owner, name: bare } = requireFiles(present).model
  const isOwn = (given: string | undefined, own: string) => (given ?? own).toLowerCase() === own.toLowerCase()
  if (isOwn(name.owner, owner) && isOwn(name.name, bare)) return { ...name, owner, name: bare }
  const isPulledBy = (listed: string) =>
    nameText(parseRequestedName(listed)).toLowerCase() === nameText(name).toLowerCase()
  if (models.listedNames(present).some(isPulledBy)) return present.model
  const full = bareName(present.model)
  throw new CorralError(
    'model_not_found',
    `"${bareName(name)}" is only another name of "${full}". Delete "${full}" itself.`,
    { param: 'model' }
  )
}

/** For surfaces whose lists have a row for each variant: the one that a bare name stands for, and not all of them. */
export function listedVariant(catalog: Pick<Catalog, 'variants'>, name: ModelName): ModelName {
  return name.variant === undefined ? (catalog.variants(name)[0]?.model ?? name) : name
}

/**
 * Deletes a model with all its variants, or one of them where the name has its label. Its requests and pulls end.
 * @throws CorralError `model_not_found`
 */
export async function deleteModel(
  { storage, downloads }: { storage: Pick<Storage, 'find' | 'remove'>; downloads: Pick<Downloads, 'cancelModel'> },
  name: ModelName
): Promise<void> {
  const message = `"${bareName(name)}" was deleted while it was being pulled. Pull it again to get it.`
  const cancelled = await downloads.cancelModel(name, new CorralError('pull_cancelled', message, { param: 'model' }))
  // There may be nothing but the pull.
  if (cancelled === 0 || storage.find(name)) await storage.remove(name)
}
