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
