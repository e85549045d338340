import type {
  StateChange,
  StateRecord,
  StateSnapshot,
  StateTopic,
  StateValue
} from '../../../../core/contracts/state-events.ts'

/** The records of a node's event feed. */
export class NodeRecords {
  readonly #topics = new Map<string, Map<string, Record<string, unknown>>>()

  /** @returns topics with new or changed records */
  apply(event: StateSnapshot | StateChange): Set<string> {
    const touched = new Set<string>()
    if ('records' in event) {
      for (const topic of this.#topics.keys()) touched.add(topic)
      this.#topics.clear()
      for (const { topic, key, value } of event.records) {
        this.#of(topic).set(key, value)
        touched.add(topic)
      }
      return touched
    }
    for (const { topic, key } of event.removed) {
      this.#of(topic).delete(key)
      touched.add(topic)
    }
    for (const { topic, key, value } of event.set) {
      const records = this.#of(topic)
      const merged: Record<string, unknown> = { ...records.get(key), ...value }
      for (const name of Object.keys(merged)) if (merged[name] === null) delete merged[name]
      records.set(key, merged)
      touched.add(topic)
    }
    return touched
  }

  all<Topic extends StateTopic>(topic: Topic): StateValue<Topic>[] {
    return [...(this.#topics.get(topic)?.values() ?? [])] as StateValue<Topic>[]
  }

  #of(topic: StateRecord['topic']): Map<string, Record<string, unknown>> {
    const known = this.#topics.get(topic)
    if (known) return known
    const records = new Map<string, Record<string, unknown>>()
    this.#topics.set(topic, records)
    return records
  }
}
