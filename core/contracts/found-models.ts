import { type Static, Type } from 'typebox'
import { Flag, ListOf, Text, Texts, Titled } from '../http/request-fields.ts'
import type { ModelName } from '../models/model-name.ts'
import type { Caller } from './callers.ts'
import { Bytes, Format } from './native-records.ts'
import type { Waiting } from './progress.ts'
import type { StoredVariant } from './storage.ts'

/** The models in the cache of another tool. */
export const FoundModelsSchema = Titled('FoundModels', {
  from: Text('The tool'),
  folder: Text('The searched folder: an absolute path, or several separated by commas'),
  models: ListOf({
    found: Text('Its name in that tool, which an import uses'),
    name: Text('Its name in corral'),
    format: Format,
    size: Bytes('Bytes of all its files'),
    path: Text('Absolute path of its first file, or of its folder'),
    problem: Type.Optional(Text('Why it cannot be imported')),
    notes: Type.Optional(Texts('What an import would not keep, and why')),
    present: Flag('Whether it is already stored'),
    storedAs: Type.Optional(Text('The name it is stored under'))
  }),
  unreadable: Type.Optional(Texts('What could not be searched, and why'))
})
export type FoundModels = Static<typeof FoundModelsSchema>
export type FoundModel = FoundModels['models'][number]

/** Imports models that other tools have downloaded. */
export interface Adoption {
  /** Lists the importable models of a tool. @throws CorralError `invalid_request`, `path_not_allowed` */
  find(from: string, caller?: Caller): Promise<FoundModels>
  /**
   * Stores a listed model, by link if possible.
   * @param name undefined to use the name in the list
   * @returns `linked`: its weights were not copied; `notes`: what was not kept, and why
   * @throws CorralError `model_not_found` if the cache has no such model, `invalid_request` with its problem, and the
   * errors of Storage.adopt
   */
  adopt(
    from: string,
    found: string,
    name: ModelName | undefined,
    waiting: Waiting,
    caller?: Caller
  ): Promise<{ variant: StoredVariant; linked: boolean; notes: string[] }>
}
