declare module 'temml' {
  const temml: {
    /** Shows a formula in an element. @throws for one that cannot be read, if `throwOnError` */
    render(
      text: string,
      element: HTMLElement,
      options: { displayMode: boolean; throwOnError: boolean; trust: boolean; maxExpand: number }
    ): void
  }
  export default temml
}

declare module 'pdfjs-dist/build/pdf.worker.mjs' {
  /** What would run in a worker of its own. */
  export const WorkerMessageHandler: unknown
}
